#pragma once

// Cuts words into the pieces with the largest sum of scores. A double-array trie finds the pieces.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "worker/rank/data/tokenizer/word_model.h"

namespace titan::data {

// A trie of byte strings: the child of node n by byte b is at base[n] + b, and its parent is n.
class DoubleArray {
 public:
  // Keys may come in any order; the last of equal keys counts. Values are at least 0.
  explicit DoubleArray(std::vector<std::pair<std::string, int32_t>> keys);

  static constexpr int32_t kRoot = 0, kNone = -1;
  // Returns the child of `node` by `byte`, or kNone.
  int32_t child(int32_t node, unsigned char byte) const {
    const size_t at = static_cast<size_t>(nodes_[node].base) + byte;
    return nodes_[at].parent == node ? static_cast<int32_t>(at) : kNone;
  }
  // Returns the value of the key that ends at `node`, or kNone.
  int32_t value(int32_t node) const { return nodes_[node].value; }

  // Returns the value of the whole key, or kNone.
  int32_t find(std::string_view key) const;

 private:
  struct Node {
    int32_t base = 0, parent = kNone, value = kNone;
  };
  using Keys = std::vector<std::pair<std::string, int32_t>>;

  void place_children(const std::vector<unsigned char>& bytes, int32_t node);
  bool fits(const std::vector<unsigned char>& bytes, size_t base);

  std::vector<Node> nodes_;
  size_t first_free_ = 1;  // A search for free nodes starts here.
};

struct UnigramPiece {
  std::string text;
  int32_t id = 0;
  double score = 0;  // Log probability.
};

struct UnigramOptions {
  int32_t unknown_id = 0;
  double unknown_score = 0;              // Score of a character without a piece.
  std::array<int32_t, 256> byte_tokens;  // Token ids of the bytes of unknown text; -1: none.
  bool single_precision = false;         // Sums scores in float and caches no words, as SentencePiece does.
};

// Finds the segmentation with the largest sum of scores. Adjacent unknown characters become one unknown token, or
// tokens of bytes. Caches words, so it is not thread safe.
class Unigram final : public WordModel {
 public:
  Unigram(const std::vector<UnigramPiece>& pieces, const UnigramOptions& options);

  void encode(std::string_view word, std::vector<int32_t>& tokens) override;

 private:
  template <typename Sum>
  struct Ending {
    Sum score = 0;
    int32_t begin = -1, piece = 0;  // Begin and id of the last piece on the best path to here.
  };
  struct Part {
    uint32_t begin, end;
    int32_t id;
  };

  template <typename Sum>
  void find_best_path(std::string_view text, std::vector<Ending<Sum>>& endings);
  void emit(std::string_view text, std::vector<int32_t>& tokens) const;
  void emit_unknown(std::string_view text, std::vector<int32_t>& tokens) const;

  UnigramOptions options_;
  DoubleArray trie_;
  struct Score {
    int32_t id;
    double score;
  };
  std::vector<Score> scores_;  // Indexed by the trie's values.
  absl::flat_hash_map<std::string, std::vector<int32_t>> cache_;
  std::vector<Ending<float>> single_;  // Scratch space.
  std::vector<Ending<double>> double_;
  std::vector<Part> parts_;  // From the last part to the first.
};

}  // namespace titan::data
