#pragma once

// The files of a shard of Titan's token index (docs/howto/tokenize-data.md), and ShardWriter, which writes them.
// open_titan_shard() in token_set.h reads them.
//
// NAME.tokens has only the tokens, little-endian. In version 2, tokens that are not labels are stored as their
// complements, negative numbers (label_tokens.h). NAME.index has the header, the documents' first tokens (8 bytes each,
// followed by the number of all tokens), a CRC-32C for each block of NAME.tokens, and one for each block of those
// numbers.

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/tokens/checked_file.h"

namespace titan::data {

static_assert(std::endian::native == std::endian::little);

// The first 40 bytes of NAME.index.
struct ShardHeader {
  std::array<char, 8> magic = {'T', 'I', 'T', 'A', 'N', 'T', 'O', 'K'};
  uint32_t version = 1;  // 2: tokens mark which of them are labels, and `width` is 4.
  uint32_t width = 2;    // Bytes of a token: 2 or 4.
  int64_t tokens = 0;
  int64_t documents = 0;
  uint32_t reserved = 0;
  uint32_t sum = 0;  // CRC-32C of the fields before it.
};
static_assert(sizeof(ShardHeader) == 40);

constexpr int64_t kTokenBlock = 32 * 1024, kOffsetBlock = 4 * 1024;

inline bool is_marked(const ShardHeader& header) { return header.version == 2; }

uint32_t header_sum(const ShardHeader& header);

// Offsets and sizes in bytes. Checksums are in NAME.index.
struct ShardLayout {
  explicit ShardLayout(const ShardHeader& header)
      : token_bytes(header.tokens * header.width),
        offset_bytes((header.documents + 1) * 8),
        token_sums(static_cast<int64_t>(sizeof header) + offset_bytes),
        offset_sums(token_sums + 4 * blocks_of(token_bytes, kTokenBlock)),
        size(offset_sums + 4 * blocks_of(offset_bytes, kOffsetBlock)) {}
  int64_t token_bytes, offset_bytes, token_sums, offset_sums, size;
};

inline constexpr const char *kTokensSuffix = ".tokens", *kIndexSuffix = ".index";

// Writes a shard: NAME.tokens as documents come, NAME.index at the end. Replaces what a killed writer left.
class ShardWriter {
 public:
  // `name` is the path without suffix. Tokens have `width` bytes; with `marked` they have 4 and mark which are labels.
  static absl::StatusOr<ShardWriter> create(storage::Files& files, const std::string& name, uint32_t width,
                                            bool marked = false);

  // Appends a document. Its tokens have to fit `width`.
  absl::Status add_document(const std::vector<int32_t>& tokens);

  // Writes the index. Both files are durable afterwards.
  struct Written {
    int64_t tokens = 0, documents = 0;
    uint32_t index_sum = 0;  // CRC-32C of NAME.index, which holds the checksums of NAME.tokens.
  };
  absl::StatusOr<Written> finish();

 private:
  ShardWriter(storage::Files& files, std::string name, uint32_t width, bool marked)
      : files_(&files), name_(std::move(name)) {
    header_.version = marked ? 2 : 1;
    header_.width = marked ? 4 : width;
  }
  absl::Status flush(bool all);

  storage::Files* files_;
  std::string name_;
  ShardHeader header_;
  std::unique_ptr<storage::WritableFile> tokens_;
  std::string buffer_;
  std::vector<uint32_t> sums_;
  std::vector<int64_t> begins_ = {0};
};

}  // namespace titan::data
