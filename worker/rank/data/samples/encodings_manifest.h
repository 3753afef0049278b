#pragma once

// A dataset of stored encodings: what the frozen encoders of Flux make of images and captions, so that a training needs
// neither. titan-data encode-images writes it (docs/howto/image-data.md). A folder holds
//   titan-encodings.json    this manifest, written last: without it the dataset is not finished;
//   shard-00000.safetensors, ...  the samples;
//   empty.safetensors       the encodings of the empty caption, for classifier-free guidance.
//
// A shard of N samples has the tensors
//   latents       [N, 2 C, h, w]  mean, then logarithm of the variance, of the image's latents, not scaled;
//   t5            [N, T, D]       T5's last hidden states;
//   clip          [N, V]          CLIP's pooled output;
//   captions      U8              the captions in UTF-8, one after the other;
//   caption_ends  I64 [N]         where each ends;
//   source        I64 [N]         its number among the samples that were encoded;
//   crc32c        I64 [N]         CRC-32C of its row of latents, t5 and clip and of its caption, in this order.
// The first three have the manifest's type. The file's head, up to the end of the three of 64-bit numbers, comes first
// and has a checksum in the manifest, so that all of a sample is verified whenever it is read.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"

namespace titan::data {

inline constexpr char kEncodingsManifest[] = "titan-encodings.json", kEmptyEncodings[] = "empty.safetensors";

// Names of a shard's tensors.
inline constexpr char kStoredLatents[] = "latents", kStoredT5[] = "t5", kStoredClip[] = "clip",
                      kStoredCaptions[] = "captions", kStoredCaptionEnds[] = "caption_ends", kStoredSource[] = "source",
                      kStoredSums[] = "crc32c";

struct EncodingsManifest {
  struct Shard {
    std::string name;        // "shard-00000.safetensors"
    int64_t samples = 0;     // 0: the shard has no file.
    int64_t skipped = 0;     // Samples of the source that could not be used.
    int64_t bytes = 0;       // Size of the file.
    int64_t head_bytes = 0;  // Size of its head.
    int64_t head_sum = 0;    // CRC-32C of the head.
  };
  std::string dtype;  // Type of the encodings, as safetensors names it: "F32", "BF16" or "F64".
  int64_t image_size = 0;
  int64_t latent_channels = 0, latent_side = 0;
  int64_t t5_tokens = 0, t5_width = 0, clip_width = 0;
  double scale = 0, shift = 0;  // The autoencoder's: latents are scale * (z - shift).
  std::string crop;             // "center", or "random" with its seed.
  // Identifies what made the encodings: a text for each of "t5_encoder", "clip_encoder", "autoencoder_path" and
  // "tokenizers" that differs for other encoders.
  std::map<std::string, std::string> encoders;
  int64_t empty_sum = 0;  // CRC-32C of empty.safetensors.
  std::vector<Shard> shards;

  int64_t samples() const;
  int64_t skipped() const;
  // Return the bytes of a sample's row.
  int64_t latent_bytes() const;
  int64_t t5_bytes() const;
  int64_t clip_bytes() const;
  // Returns the shard of a file's path; null if there is none of its name.
  const Shard* find(const std::string& path) const;
};

nlohmann::json to_json(const EncodingsManifest::Shard& shard);
// Errors: DataLoss, names `path` and the key.
absl::StatusOr<EncodingsManifest::Shard> encoded_shard_from_json(const nlohmann::json& json, const std::string& path);

std::string manifest_text(const EncodingsManifest& manifest);
// Reads the manifest of a folder. Errors: NotFound, with a remedy; DataLoss if it is malformed or does not match its
// checksum; InvalidArgument for an unknown version of the format; those of `files`.
absl::StatusOr<EncodingsManifest> read_encodings_manifest(storage::Files& files, const std::string& folder);

// The encodings of the empty caption, as bytes of the manifest's type.
struct EmptyEncodings {
  std::string t5, clip;
};
// Errors: DataLoss, names the file.
absl::StatusOr<EmptyEncodings> read_empty_encodings(storage::Files& files, const std::string& folder,
                                                    const EncodingsManifest& manifest);

}  // namespace titan::data
