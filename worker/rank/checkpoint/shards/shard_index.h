#pragma once

// The index at the end of a shard: what a reader needs of it besides the data. It is the last tensor of the safetensors
// file, so that the file stays one.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/shards/manifest.h"

namespace titan::checkpoint {

inline constexpr char kIndexKey[] = "titan.index";  // Bytes: U8.

struct ShardIndex {
  int64_t header_bytes = 0;  // Safetensors length and header.
  int64_t data_bytes = 0;    // After it, up to the index.
  uint32_t header_crc = 0;
  uint32_t pieces_crc = 0;           // pieces_crc() of what lies there.
  std::vector<uint32_t> chunk_crcs;  // Of each kChunkBytes of the data; the last may be shorter.
};

int64_t chunks_of(int64_t data_bytes);
int64_t index_bytes(int64_t data_bytes);

// With a checksum of its own at the end, by which the manifest names it.
std::string to_bytes(const ShardIndex& index);
uint32_t checksum_in(std::string_view index_bytes);
// Errors: DataLoss saying what is wrong (no path: the caller knows it).
absl::StatusOr<ShardIndex> index_from_bytes(std::string_view bytes);

// A piece of a tensor as one shard holds it.
struct PieceRecord {
  std::string key;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;  // The tensor's.
  Box box;
};
// The order in which the pieces of a shard lie: larger elements first, then by key, then by offset. Their places
// follow.
bool lies_before(const PieceRecord& a, const PieceRecord& b);
// Of all pieces of a shard in that order: who reads it by the manifest must mean the same.
uint32_t pieces_crc(const std::vector<PieceRecord>& pieces);

}  // namespace titan::checkpoint
