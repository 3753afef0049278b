#pragma once

// What a manifest says of files and tensors.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/box.h"

namespace titan::checkpoint {

inline constexpr int64_t kChunkBytes = 1 << 20;

// Checksums travel as 8 hex digits each.
std::string hex(const std::vector<uint32_t>& values);
absl::StatusOr<std::vector<uint32_t>> unhex(const std::string& text);
absl::StatusOr<uint32_t> unhex_one(const std::string& text);

struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  int64_t index_bytes = 0;  // At the file's end: a ShardIndex. 0 in steps of the first version.
  uint32_t index_crc = 0;
  int64_t header_bytes = 0;  // Safetensors length and header: the first version's, its pieces' checksums are below.
  uint32_t header_crc = 0;

  bool indexed() const { return index_bytes > 0; }
};
nlohmann::json to_json(const FileRecord& file);
// Throws what nlohmann::json throws.
absl::StatusOr<FileRecord> file_from_json(const nlohmann::json& from);

struct Piece {
  int file = 0;       // Index into Manifest::files.
  int64_t begin = 0;  // First byte in the file.
  Box box;
  std::vector<uint32_t> chunk_crcs;  // Of each kChunkBytes of the piece; the last may be shorter.
};

struct TensorRecord {
  std::string key;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;  // The first version's: cover the tensor exactly once.
};
// Without pieces.
nlohmann::json to_json(const TensorRecord& tensor);
absl::StatusOr<TensorRecord> tensor_from_json(const nlohmann::json& from);  // Throws likewise.

// A shape that is none, or has more bytes than can be counted: DataLoss.
absl::Status check_shape(const TensorRecord& tensor);

}  // namespace titan::checkpoint
