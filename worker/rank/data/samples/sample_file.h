#pragma once

// Reads the samples of one file in any order, whatever its format.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/samples/sample.h"
#include "worker/rank/data/samples/sample_index.h"

namespace titan::data {

// kWebDataset: a tar archive (tar_samples.cc). kFolder: a folder of images with captions next to them, or its
// metadata.jsonl (folder_samples.cc, metadata_samples.cc). kParquet: columns of images and captions
// (parquet_samples.cc). kEncodings: stored encodings of images and captions (encoding_samples.cc).
enum class SampleFormat { kAuto, kWebDataset, kFolder, kParquet, kEncodings };

// kCaption: an image and its caption. kInterleaved: lists "images" and "texts" of one length, in which each place has
// either an image or a text, as in OBELICS.
enum class SampleLayout { kCaption, kInterleaved };

struct EncodingsManifest;

// Describes how files are read as samples.
struct SampleKind {
  SampleFormat format = SampleFormat::kWebDataset;  // Not kAuto.
  SampleLayout layout = SampleLayout::kCaption;
  // The image: the ending of its member of a tar or of the files of a folder, without a dot, or its column of Parquet.
  // Empty: the first member or file with the ending of an image; the column "image", or else "jpg".
  std::string image_key = {};
  // The caption: the ending of its member or file, or its key in JSON, or its column. Empty: the member or file .txt,
  // or the member .caption; else the first there is of the keys and columns "caption", "text", "txt".
  std::string caption_key = {};
  storage::Files* files = nullptr;  // Opens local files and s3:// (s3::all_files); null: the machine's files only.
  std::shared_ptr<data_files::RemoteFiles> remote = nullptr;     // Reads the files from a hub; null: `files` does.
  std::shared_ptr<const EncodingsManifest> encodings = nullptr;  // kEncodings: describes all files.
};

// A file of samples. Thread-safe.
class SampleFile {
 public:
  virtual ~SampleFile() = default;

  // Returns the number of samples, including those that turn out to be unusable.
  virtual int64_t samples() const = 0;

  // Reads a sample, by its number in the file. Sample::problem says why it cannot be used, if so. Errors: those of the
  // disk, hub or store; InvalidArgument for a file that is damaged or has changed (names the file).
  virtual absl::StatusOr<Sample> read(int64_t sample) = 0;

  // Returns the first `bytes` bytes of the image of a sample with a caption, or all of it if it has fewer; "" without
  // an image. Reads only them and their surroundings in a tar archive or a folder, and the whole sample elsewhere.
  // Errors: those of read().
  virtual absl::StatusOr<std::string> image_start(int64_t sample, int64_t bytes);

  // Returns a warning about the file, or "".
  virtual std::string warning() const { return ""; }

  // Opens a file, whose index `store` keeps if its format needs one. Errors: NotFound; those of read(); Unimplemented
  // for a format that cannot be read from where the file is.
  static absl::StatusOr<std::unique_ptr<SampleFile>> open(const std::string& path, const SampleKind& kind,
                                                          IndexStore& store);
};

// open() calls one of these, by the format.
absl::StatusOr<std::unique_ptr<SampleFile>> open_tar(const std::string& path, const SampleKind& kind,
                                                     IndexStore& store);
absl::StatusOr<std::unique_ptr<SampleFile>> open_folder(const std::string& path, const SampleKind& kind);
absl::StatusOr<std::unique_ptr<SampleFile>> open_metadata(const std::string& path, const SampleKind& kind,
                                                          IndexStore& store);
absl::StatusOr<std::unique_ptr<SampleFile>> open_parquet_samples(const std::string& path, const SampleKind& kind);
absl::StatusOr<std::unique_ptr<SampleFile>> open_encodings(const std::string& path, const SampleKind& kind);

// Returns whether the format's files have an index in an IndexStore.
bool has_index(const std::string& path, const SampleKind& kind);

// Opens the bytes of a file. Errors: those of the disk, hub or store; Unimplemented for a remote file of unknown size.
absl::StatusOr<std::shared_ptr<storage::ReadableFile>> open_bytes(const std::string& path, const SampleKind& kind);

// Returns a text that identifies the content of a file without reading it, for IndexStore: by its name, size and time
// of change, or by its name and size in a store, or by its name on a hub, which contains the commit.
absl::StatusOr<std::string> facts_of(const std::string& path, const SampleKind& kind);

// Returns whether a name or extension ends as that of an image: jpg, jpeg, png or webp, in any case. "jpg" itself does.
bool names_image(std::string_view name);
// Returns whether a file of a folder is an image of `kind` (SampleKind::image_key), by its name.
bool names_image_of(const SampleKind& kind, std::string_view name);
// Returns a key as an ending: in lower case and without a dot at its beginning.
std::string ending_of(std::string_view key);

// The file that describes the images of a folder, as Hugging Face's datasets names it.
inline constexpr const char* kMetadataFile = "metadata.jsonl";

// Returns the caption in a sample's JSON object: a text, or the first of a list of texts. Nothing if there is none.
std::optional<std::string> caption_of(const nlohmann::ordered_json& fields, const SampleKind& kind);

// Adds a caption to a sample. Sets the sample's problem if there is none, or if it is not UTF-8.
void add_caption(std::optional<std::string> caption, Sample& sample);

}  // namespace titan::data
