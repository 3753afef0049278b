#pragma once

// The index at the end of a shard: what a reader needs in addition to the data. It is the last tensor of the
// safetensors file, so that the file remains a valid one.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/shards/manifest.h"

namespace titan::checkpoint {

inline constexpr char kIndexKey[] = "titan.index";  // A tensor of bytes (U8).

struct ShardIndex {
  int64_t header_bytes = 0;  // Safetensors length and header.
  int64_t data_bytes = 0;    // After the header, up to the index.
  uint32_t header_crc = 0;
  uint32_t pieces_crc = 0;           // pieces_crc() of the shard's pieces.
  std::vector<uint32_t> chunk_crcs;  // One for each kChunkBytes of the data; the last may be shorter.
};

// Return the number of chunks in `data_bytes`, and the bytes of the index for them.
int64_t chunks_of(int64_t data_bytes);
int64_t index_bytes(int64_t data_bytes);

// Converts an index to bytes, which end with a checksum (checksum_in) by which the manifest names the index.
std::string to_bytes(const ShardIndex& index);
uint32_t checksum_in(std::string_view index_bytes);
// Parses and checks an index. Errors: DataLoss, says what is wrong (without a path, which the caller knows).
absl::StatusOr<ShardIndex> index_from_bytes(std::string_view bytes);

// A piece of a tensor as one shard holds it.
struct PieceRecord {
  std::string key;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;  // Shape of the whole tensor.
  Box box;
};
// Returns whether `a` comes before `b` in a shard: larger elements first, then by key, then by offset. Their places
// follow from the order.
bool lies_before(const PieceRecord& a, const PieceRecord& b);
// Returns a checksum over all pieces of a shard in that order. A reader compares it with the pieces that the manifest
// states.
uint32_t pieces_crc(const std::vector<PieceRecord>& pieces);

}  // namespace titan::checkpoint
