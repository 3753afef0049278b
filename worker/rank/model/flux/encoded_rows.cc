#include "worker/rank/model/flux/encoded_rows.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::model::flux {
namespace {

std::vector<RowMaker::Member> members_of(const data::EncodingsManifest& encodings) {
  const at::ScalarType type = checkpoint::scalar_type(encodings.dtype).value();  // Checked by the manifest's reader.
  const int64_t side = encodings.latent_side;
  return {{kMoments, type, {2 * encodings.latent_channels, side, side}},
          {kT5Encoding, type, {encodings.t5_tokens, encodings.t5_width}},
          {kClipEncoding, type, {encodings.clip_width}}};
}

at::Tensor tensor_of(const std::string& bytes, const RowMaker::Member& member) {
  at::Tensor tensor = at::empty(member.shape, member.type);
  TORCH_CHECK(tensor.nbytes() == bytes.size(), "a stored encoding \"", member.name, "\" has ", bytes.size(),
              " bytes, expected ", tensor.nbytes());
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

absl::Status check_encodings(const data::EncodingsManifest& encodings, const std::string& path,
                             const models::FluxSpec& spec, const config::JobConfig& config) {
  const std::string model = absl::StrCat("flux ", spec.flavor, " reads ");
  const std::pair<std::pair<const char*, std::string>, std::pair<int64_t, int64_t>> sizes[] = {
      {{"images of width", "training.img_size is "}, {encodings.image_size, config.training.img_size}},
      {{"T5 encodings of length", "encoder.max_t5_encoding_len is "},
       {encodings.t5_tokens, config.encoder.max_t5_encoding_len}},
      {{"T5 encodings of width", model}, {encodings.t5_width, spec.txt_width}},
      {{"CLIP encodings of width", model}, {encodings.clip_width, spec.vec_width}},
      {{"latents whose channels for 2 x 2 places are", model}, {4 * encodings.latent_channels, spec.in_channels}}};
  for (const auto& [words, values] : sizes) {
    if (values.first == values.second) continue;
    return absl::InvalidArgumentError(absl::StrCat("dataset_path ", path, ": holds ", words.first, " ", values.first,
                                                   ", but ", words.second, values.second));
  }
  return absl::OkStatus();
}

absl::Status check_same_encoders(const data::EncodingsManifest& encodings, const std::string& path,
                                 const std::map<std::string, std::string>& theirs, const std::string& other) {
  for (const auto& [encoder, mark] : theirs) {
    const auto found = encodings.encoders.find(encoder);
    if (found != encodings.encoders.end() && found->second == mark) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("dataset_path ", path, ": its encodings were made with another ", encoder, " (",
                     found == encodings.encoders.end() ? "not recorded" : found->second, ") than ", other, " (", mark,
                     "): encode the images again, or name the encoders that made them"));
  }
  return absl::OkStatus();
}

EncodedRows::EncodedRows(std::shared_ptr<const data::EncodingsManifest> encodings, const data::EmptyEncodings& empty)
    : members_(members_of(*encodings)),
      empty_t5_(tensor_of(empty.t5, members_[1])),
      empty_clip_(tensor_of(empty.clip, members_[2])) {}

absl::StatusOr<std::vector<at::Tensor>> EncodedRows::make(const data::Sample& sample,
                                                          const random::SampleDraws& draws) const {
  return std::vector<at::Tensor>{tensor_of(sample.parts[0].bytes, members_[0]),
                                 draws.drop_t5 ? empty_t5_ : tensor_of(sample.parts[1].bytes, members_[1]),
                                 draws.drop_clip ? empty_clip_ : tensor_of(sample.parts[2].bytes, members_[2])};
}

}  // namespace titan::model::flux
