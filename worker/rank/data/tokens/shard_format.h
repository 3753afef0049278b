#pragma once

// The files of a shard of Titan's token index (docs/howto/prepare-data.md). NAME.tokens: the tokens, little-endian,
// nothing else; of version 2 those that are no labels as their complements, negative numbers (label_tokens.h).
// NAME.index: the header, the documents' first tokens (8 bytes each, with the number of all tokens behind), then a
// CRC-32C for each block of NAME.tokens and one for each block of those numbers.

#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "worker/rank/data/tokens/checked_file.h"

namespace titan::data {

static_assert(std::endian::native == std::endian::little);

struct ShardHeader {
  std::array<char, 8> magic = {'T', 'I', 'T', 'A', 'N', 'T', 'O', 'K'};
  uint32_t version = 1;  // 2: which tokens are labels is marked; `width` is 4 then.
  uint32_t width = 2;    // Bytes of a token: 2 or 4.
  int64_t tokens = 0;
  int64_t documents = 0;
  uint32_t reserved = 0;
  uint32_t sum = 0;  // CRC-32C of all before it.
};
static_assert(sizeof(ShardHeader) == 40);

constexpr int64_t kTokenBlock = 32 * 1024, kOffsetBlock = 4 * 1024;

inline bool is_marked(const ShardHeader& header) { return header.version == 2; }

uint32_t header_sum(const ShardHeader& header);

// Where in NAME.index things are.
struct ShardLayout {
  explicit ShardLayout(const ShardHeader& header)
      : token_bytes(header.tokens * header.width),
        offset_bytes((header.documents + 1) * 8),
        token_sums(static_cast<int64_t>(sizeof header) + offset_bytes),
        offset_sums(token_sums + 4 * blocks_of(token_bytes, kTokenBlock)),
        size(offset_sums + 4 * blocks_of(offset_bytes, kOffsetBlock)) {}
  int64_t token_bytes, offset_bytes, token_sums, offset_sums, size;
};

inline constexpr const char *kTokensEnding = ".tokens", *kIndexEnding = ".index";

}  // namespace titan::data
