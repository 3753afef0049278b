#include "worker/rank/checkpoint/shards/shard_index.h"

#include <cstring>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint {
namespace {

constexpr std::string_view kMagic = "TITANIDX";
constexpr uint32_t kVersion = 1;
constexpr size_t kFixed = 8 + 4 + 4 + 8 + 8 + 4;  // Bytes before the chunks' checksums.

template <typename Number>
void put(std::string& to, Number number) {  // Little-endian, like everything in a safetensors file.
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <typename Number>
Number get(std::string_view from, size_t at) {
  Number number;
  std::memcpy(&number, from.data() + at, sizeof number);
  return number;
}

}  // namespace

int64_t chunks_of(int64_t data_bytes) { return data_bytes / kChunkBytes + (data_bytes % kChunkBytes != 0 ? 1 : 0); }

int64_t index_bytes(int64_t data_bytes) { return static_cast<int64_t>(kFixed) + 4 * chunks_of(data_bytes) + 4; }

std::string to_bytes(const ShardIndex& index) {
  std::string bytes(kMagic);
  put(bytes, kVersion);
  put(bytes, index.header_crc);
  put(bytes, index.header_bytes);
  put(bytes, index.data_bytes);
  put(bytes, index.pieces_crc);
  for (const uint32_t crc : index.chunk_crcs) put(bytes, crc);
  put(bytes, storage::crc32c(bytes.data(), bytes.size()));
  return bytes;
}

// Returns the stored checksum. A checksum over bytes that end with their own checksum is the same for all texts of one
// length.
uint32_t checksum_in(std::string_view index_bytes) { return get<uint32_t>(index_bytes, index_bytes.size() - 4); }

absl::StatusOr<ShardIndex> index_from_bytes(std::string_view bytes) {
  if (bytes.size() < kFixed + 4 || bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError("not a shard's index, or cut short");
  }
  const std::string_view body = bytes.substr(0, bytes.size() - 4);
  if (storage::crc32c(body.data(), body.size()) != checksum_in(bytes)) {
    return absl::DataLossError("checksum mismatch: the index is damaged");
  }
  if (const auto version = get<uint32_t>(bytes, 8); version != kVersion) {
    return absl::DataLossError(
        absl::StrCat("index version ", version, ", this program reads ", kVersion, ": use a newer Titan"));
  }
  ShardIndex index{.header_bytes = get<int64_t>(bytes, 16),
                   .data_bytes = get<int64_t>(bytes, 24),
                   .header_crc = get<uint32_t>(bytes, 12),
                   .pieces_crc = get<uint32_t>(bytes, 32)};
  const auto size = static_cast<int64_t>(bytes.size());
  if (index.header_bytes < 8 || index.data_bytes < 0 ||
      index.header_bytes > std::numeric_limits<int64_t>::max() - index.data_bytes ||
      chunks_of(index.data_bytes) > size || size != index_bytes(index.data_bytes)) {
    return absl::DataLossError("the index has invalid sizes");
  }
  for (int64_t i = 0; i < chunks_of(index.data_bytes); ++i) {
    index.chunk_crcs.push_back(get<uint32_t>(bytes, kFixed + 4 * static_cast<size_t>(i)));
  }
  return index;
}

bool lies_before(const PieceRecord& a, const PieceRecord& b) {
  const size_t of_a = c10::elementSize(a.dtype), of_b = c10::elementSize(b.dtype);
  return std::tie(of_b, a.key, a.box.offset) < std::tie(of_a, b.key, b.box.offset);
}

uint32_t pieces_crc(const std::vector<PieceRecord>& pieces) {
  uint32_t crc = 0;
  for (const PieceRecord& piece : pieces) {
    const std::string line = absl::StrCat(piece.key, " ", safetensors_dtype(piece.dtype).value_or("?"), " [",
                                          absl::StrJoin(piece.shape, ","), "] [", absl::StrJoin(piece.box.offset, ","),
                                          "] [", absl::StrJoin(piece.box.shape, ","), "]\n");
    crc = storage::crc32c(line.data(), line.size(), crc);
  }
  return crc;
}

}  // namespace titan::checkpoint
