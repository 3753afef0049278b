#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "worker/rank/kernels/cpu/attention.h"

namespace titan::kernels {
namespace {

// Returns whether position `query` sees position `key`, by the definition of the masks.
bool sees(const KeyRangeMask& mask, const std::vector<int64_t>& starts, int64_t query, int64_t key) {
  const auto document = [&](int64_t position) {
    int64_t number = 0;
    for (const int64_t start : starts) number += start <= position;
    return number;
  };
  if (mask.causal && key > query) return false;
  if (mask.window > 0 && query - key >= mask.window) return false;
  if (mask.chunk > 0 && query / mask.chunk != key / mask.chunk) return false;
  return mask.documents == 0 || document(query) == document(key);
}

TEST(AttentionMaskTest, EveryCombinationForEveryPiece) {
  std::mt19937_64 random(1);
  const auto pick = [&](int64_t first, int64_t last) {
    return std::uniform_int_distribution<int64_t>(first, last)(random);
  };
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<int64_t> starts{0};
    while (pick(0, 4) != 0) starts.push_back(starts.back() + pick(1, 9));
    KeyRangeMask mask{.causal = pick(0, 2) != 0, .window = pick(0, 1) * pick(1, 12), .chunk = pick(0, 1) * pick(1, 12)};
    if (pick(0, 1) == 0) mask.document_starts = starts.data(), mask.documents = static_cast<int64_t>(starts.size());
    const int64_t first_query = pick(0, 20), first_key = pick(0, 20), queries = pick(0, 20), keys = pick(0, 20);
    std::vector<KeyRange> visible(queries);
    visible_keys(mask, first_query, queries, first_key, keys, visible.data());
    for (int64_t i = 0; i < queries; ++i) {
      EXPECT_GE(visible[i].begin, 0);
      EXPECT_LE(visible[i].begin, visible[i].end);
      EXPECT_LE(visible[i].end, keys);
      for (int64_t j = 0; j < keys; ++j) {
        EXPECT_EQ(visible[i].begin <= j && j < visible[i].end, sees(mask, starts, first_query + i, first_key + j))
            << "trial " << trial << ": query " << first_query + i << ", key " << first_key + j;
      }
    }
  }
}

}  // namespace
}  // namespace titan::kernels
