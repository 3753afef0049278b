#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace titan::data {

// A trie of byte strings in three arrays: the child of node n by byte b lies at base[n] + b and names n as its parent.
class DoubleArray {
 public:
  // Keys may come in any order; of equal ones the last counts. Values are at least 0.
  explicit DoubleArray(std::vector<std::pair<std::string, int32_t>> keys);

  static constexpr int32_t kRoot = 0, kNone = -1;
  int32_t child(int32_t node, unsigned char byte) const {
    const size_t at = static_cast<size_t>(nodes_[node].base) + byte;
    return nodes_[at].parent == node ? static_cast<int32_t>(at) : kNone;
  }
  // The value of the key that ends at `node`, or kNone.
  int32_t value(int32_t node) const { return nodes_[node].value; }

  int32_t find(std::string_view key) const;

 private:
  struct Node {
    int32_t base = 0, parent = kNone, value = kNone;
  };
  using Keys = std::vector<std::pair<std::string, int32_t>>;

  void place_children(const std::vector<unsigned char>& bytes, int32_t node);
  bool fits(const std::vector<unsigned char>& bytes, size_t base);

  std::vector<Node> nodes_;
  size_t first_free_ = 1;  // No place before it is worth a look.
};

}  // namespace titan::data
