#include "worker/rank/data/tokenizer/double_array.h"

#include <algorithm>

namespace titan::data {
namespace {

constexpr size_t kBytes = 256;

// Keys [first, last) share their first `depth` bytes, which lead to `node`.
struct Range {
  size_t first, last, depth;
  int32_t node;
};

}  // namespace

DoubleArray::DoubleArray(Keys keys) : nodes_(2 * kBytes) {
  std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Range> ranges = {{0, keys.size(), 0, kRoot}};
  std::vector<unsigned char> bytes;
  std::vector<size_t> starts;
  while (!ranges.empty()) {
    Range range = ranges.back();
    ranges.pop_back();
    while (range.first < range.last && keys[range.first].first.size() == range.depth) {
      nodes_[range.node].value = keys[range.first++].second;
    }
    bytes.clear();
    starts.clear();
    for (size_t i = range.first; i < range.last; ++i) {
      const auto byte = static_cast<unsigned char>(keys[i].first[range.depth]);
      if (!bytes.empty() && bytes.back() == byte) continue;
      bytes.push_back(byte);
      starts.push_back(i);
    }
    if (bytes.empty()) continue;
    place_children(bytes, range.node);
    starts.push_back(range.last);
    for (size_t i = 0; i < bytes.size(); ++i) {
      ranges.push_back({starts[i], starts[i + 1], range.depth + 1, nodes_[range.node].base + bytes[i]});
    }
  }
}

bool DoubleArray::fits(const std::vector<unsigned char>& bytes, size_t base) {
  if (base + kBytes > nodes_.size()) nodes_.resize(std::max(2 * nodes_.size(), base + kBytes));
  return std::all_of(bytes.begin(), bytes.end(), [&](unsigned char b) { return nodes_[base + b].parent == kNone; });
}

void DoubleArray::place_children(const std::vector<unsigned char>& bytes, int32_t node) {
  size_t at = std::max<size_t>(first_free_, bytes[0] + 1), looked_at = 0, taken = 0;
  for (;; ++at) {
    if (at >= nodes_.size()) nodes_.resize(2 * nodes_.size());
    ++looked_at;
    if (nodes_[at].parent != kNone) {
      ++taken;
    } else if (fits(bytes, at - bytes[0])) {
      break;
    }
  }
  // Where nearly all is taken nobody looks again, so that long vocabularies stay quick to place.
  if (taken * 20 >= looked_at * 19) first_free_ = std::max(first_free_, at);
  const size_t base = at - bytes[0];
  nodes_[node].base = static_cast<int32_t>(base);
  for (const unsigned char byte : bytes) nodes_[base + byte].parent = node;
  if (base + 2 * kBytes > nodes_.size()) nodes_.resize(base + 2 * kBytes);
}

int32_t DoubleArray::find(std::string_view key) const {
  int32_t node = kRoot;
  for (const char c : key) {
    node = child(node, static_cast<unsigned char>(c));
    if (node == kNone) return kNone;
  }
  return value(node);
}

}  // namespace titan::data
