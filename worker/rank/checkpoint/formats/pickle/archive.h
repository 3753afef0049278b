#pragma once

// Reads what torch.save writes: an uncompressed zip archive of a pickle (data.pkl) and the storages that it refers to.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/pickle/value.h"

namespace titan::pickle {

// A range of bytes in a file.
struct FileRange {
  int64_t begin = 0;
  int64_t bytes = 0;
};

// A tensor in an archive. Element [i, j, ...] is number offset + i * strides[0] + j * strides[1] + ... of its storage.
struct SavedTensor {
  std::string type;  // "float32", as torch names it.
  std::vector<int64_t> shape, strides;
  int64_t offset = 0;
  FileRange storage;  // Place in the file.
};

// An open archive. The file must outlive it.
class Archive {
 public:
  // Opens the archive in `range` of `file`; `where` names it in messages. Errors: DataLoss if it is damaged or not an
  // archive; FailedPrecondition if it is compressed or has another byte order.
  static absl::StatusOr<Archive> open(storage::ReadableFile& file, const FileRange& range, const std::string& where);

  absl::StatusOr<ParsedPickle> pickle() const;   // The archive's data.pkl.
  absl::StatusOr<SavedTensor> tensor() const;    // For an archive of one tensor and nothing else.
  absl::StatusOr<nlohmann::json> plain() const;  // For an archive of plain objects (plain.h).
  // Returns the tensor that `value` of pickle() describes.
  absl::StatusOr<SavedTensor> tensor(const ParsedPickle& document, const PickleValue& value) const;

 private:
  Archive(storage::ReadableFile& file, FileRange range, std::string where)
      : file_(&file), range_(range), where_(std::move(where)) {}
  absl::Status read_directory();
  absl::Status add_entry(std::string_view& directory);
  absl::StatusOr<std::string> text(const std::string& name) const;
  absl::StatusOr<std::string> read(int64_t offset, int64_t bytes) const;  // Offset in the archive.
  absl::Status damaged(const std::string& what) const;

  storage::ReadableFile* file_;
  FileRange range_;
  std::string where_;
  std::map<std::string, FileRange>
      entries_;  // By name, without the common folder; `begin` is that of the local header.
  absl::StatusOr<FileRange> data_of(const std::string& name) const;
};

}  // namespace titan::pickle
