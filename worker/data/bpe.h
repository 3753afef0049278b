#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace titan::data {

struct BpeOptions {
  bool ignore_merges = false;  // A whole word that is in the vocabulary is one token, whatever the merges say.
  bool fuse_unknown = false;   // Neighbouring unknown bytes become one unknown token.
  int32_t unknown_id = -1;     // -1: unknown bytes are dropped, as in the `tokenizers` package.
};

// Byte-level BPE over raw bytes: joins the neighbours with the lowest merge rank, leftmost first, until none is left.
// Keeps a cache of words, so it is not thread safe.
class Bpe {
 public:
  // `vocabulary`: token bytes and id. `merges` in rank order, as bytes; when a pair is repeated the last one counts.
  // Errors: InvalidArgument for a merge whose parts or result are not in the vocabulary.
  static absl::StatusOr<Bpe> create(const std::vector<std::pair<std::string, int32_t>>& vocabulary,
                                    const std::vector<std::pair<std::string, std::string>>& merges,
                                    const BpeOptions& options);

  // Appends the tokens of one word.
  void encode(std::string_view word, std::vector<int32_t>& tokens);

 private:
  struct Merge {
    int32_t rank;
    int32_t token;
  };
  struct Cached {
    uint32_t offset;
    uint32_t count;
  };

  void to_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;
  const Merge* find_merge(int32_t left, int32_t right) const;

  BpeOptions options_;
  int32_t byte_tokens_[256];
  absl::flat_hash_map<std::string, int32_t> words_;  // Only with ignore_merges.
  absl::flat_hash_map<uint64_t, Merge> merges_;
  absl::flat_hash_map<std::string, Cached> cache_;
  std::vector<int32_t> cached_tokens_;
  std::vector<int32_t> symbols_;  // Scratch.
};

}  // namespace titan::data
