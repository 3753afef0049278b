#pragma once

// A manifest's records of files and tensors, and its placement rows, which state in which file each piece of a tensor
// lies. The rows are few, however many ranks wrote. Placement finds pieces in them.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/progression.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

inline constexpr int64_t kChunkBytes = 1 << 20;  // Bytes per checksum.

// Checksums are written as 8 hex digits each. Errors: DataLoss.
std::string hex(const std::vector<uint32_t>& values);
absl::StatusOr<std::vector<uint32_t>> unhex(const std::string& text);
absl::StatusOr<uint32_t> unhex_one(const std::string& text);

// A shard, as the manifest names it.
struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  int64_t index_bytes = 0;  // Bytes of the ShardIndex at the file's end; 0 in version 1.
  uint32_t index_crc = 0;
  int64_t header_bytes = 0;  // Bytes of the safetensors length and header; only in version 1.
  uint32_t header_crc = 0;

  bool indexed() const { return index_bytes > 0; }
};
nlohmann::json to_json(const FileRecord& file);
// Throws nlohmann::json's exceptions. Errors: DataLoss for invalid values.
absl::StatusOr<FileRecord> file_from_json(const nlohmann::json& from);

// A piece of a tensor in version 1.
struct TensorPiece {
  int file = 0;       // Index into Manifest::files.
  int64_t begin = 0;  // First byte in the file.
  Box box;
  std::vector<uint32_t> chunk_crcs;  // One for each kChunkBytes of the piece; the last may be shorter.
};

// Type and global shape of a saved tensor.
struct TensorRecord {
  std::string key;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  std::vector<TensorPiece> pieces;  // Cover the tensor exactly once; only in version 1.
};
// Leaves out the pieces.
nlohmann::json to_json(const TensorRecord& tensor);
absl::StatusOr<TensorRecord> tensor_from_json(const nlohmann::json& from);  // Throws nlohmann::json's exceptions.

// Errors: DataLoss for a shape with a negative size, or with more bytes than can be counted.
absl::Status check_shape(const TensorRecord& tensor);

// Each of `tensors`, which have one shape, has a piece of `shape` at each of `places`.
struct PlacementRow {
  std::vector<Progression> tensors;  // Indices of tensors.
  std::vector<int64_t> shape;        // Shape of each piece.
  std::vector<Progression> places;   // (index of the file, offset of the piece in each dim).
};
// [tensors, shape, places]
nlohmann::json to_json(const PlacementRow& row);
PlacementRow row_from_json(const nlohmann::json& from);  // Throws nlohmann::json's exceptions; the values are
                                                         // unchecked.

// Checks that all numbers refer to these tensors and files, and that every tensor is covered exactly once. Errors:
// DataLoss, names the tensor.
absl::Status check_placement(const std::vector<PlacementRow>& rows, const std::vector<TensorRecord>& tensors,
                             size_t files);

// Finds pieces in rows that have been checked. The rows must outlive it.
class PlacementIndex {
 public:
  PlacementIndex(const std::vector<PlacementRow>& rows, size_t tensors);

  // Visits the pieces of a tensor that share an element with `window`.
  void for_each_piece(size_t tensor, const Box& window,
                      absl::FunctionRef<void(int64_t file, const Box& piece)> visit) const;
  // Visits all pieces in a file.
  void for_each_piece_in(int64_t file, absl::FunctionRef<void(size_t tensor, const Box& piece)> visit) const;
  int64_t pieces_of(size_t tensor) const;

 private:
  const std::vector<PlacementRow>& rows_;
  std::vector<std::vector<Point>> tensors_of_;  // Indexed by row.
  std::vector<std::vector<size_t>> rows_of_;    // Indexed by tensor.
};

}  // namespace titan::checkpoint
