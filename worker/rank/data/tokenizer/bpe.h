#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/word_model.h"

namespace titan::data {

struct BpeOptions {
  bool characters = false;     // Starts from characters instead of bytes.
  bool byte_fallback = false;  // With `characters`: a character without a token becomes the tokens of its bytes.
  bool ignore_merges = false;  // A word that is in the vocabulary is one token, whatever the merges say.
  bool fuse_unknown = false;   // Adjacent unknown bytes or characters become one unknown token.
  int32_t unknown_id = -1;     // -1: unknown bytes are dropped, as in the `tokenizers` package.
  // The symbol of a word's last byte ends with this text, as in CLIP ("</w>"). Without `characters` only.
  std::string end_of_word_suffix;
  std::vector<std::pair<std::string, int32_t>> whole_words;  // Words that are one token, whatever the merges say.
};

struct RankedToken {
  std::string text;
  int32_t id = 0;
  int32_t rank = 0;  // -1: no merge produces it.
};

// BPE over bytes or characters: merges the adjacent pair with the lowest rank, leftmost first, until no pair merges.
// Caches words, so it is not thread safe.
class Bpe final : public WordModel {
 public:
  // `vocabulary`: token bytes and id. `merges` in rank order, as bytes; the last of repeated pairs counts. Errors:
  // InvalidArgument for a merge whose parts or result are not in the vocabulary.
  static absl::StatusOr<Bpe> create(const std::vector<std::pair<std::string, int32_t>>& vocabulary,
                                    const std::vector<std::pair<std::string, std::string>>& merges,
                                    const BpeOptions& options);

  // Creates a model from a vocabulary without a list of merges: two tokens merge if their joined bytes are a token, the
  // lowest rank first.
  static Bpe from_ranks(const std::vector<RankedToken>& vocabulary, const BpeOptions& options);

  void encode(std::string_view word, std::vector<int32_t>& tokens) override;

  // Returns whether each character of `text` is a token.
  bool knows_characters(std::string_view text) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t token;
  };
  struct Cached {
    uint32_t offset;
    uint32_t count;
  };

  Bpe(const absl::flat_hash_map<std::string, int32_t>& ids, const BpeOptions& options);

  void encode_word(std::string_view word, std::vector<int32_t>& tokens);
  void bytes_to_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void characters_to_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  int32_t character_token(uint32_t code_point) const;
  bool add_byte_tokens(std::string_view character, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;
  const Merge* find_merge(int32_t left, int32_t right) const;

  BpeOptions options_;
  std::array<int32_t, 256> byte_tokens_, last_byte_tokens_;  // last: of a word's last byte, with the suffix.
  std::vector<int32_t> character_tokens_;                    // Ids by code point; -1: none.
  bool split_at_space_marks_ = false;  // No token holds U+2581 after another character, so no merge crosses one.
  absl::flat_hash_map<std::string, int32_t> words_;  // Words that are one token; with ignore_merges the vocabulary.
  absl::flat_hash_map<uint64_t, Merge> merges_;
  absl::flat_hash_map<std::string, Cached> cache_;
  std::vector<int32_t> cached_tokens_;
  std::vector<int32_t> symbols_;  // Scratch space.
};

}  // namespace titan::data
