#include "worker/rank/runtime/memory/block_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace titan::runtime {
namespace {

using Blocks = std::map<size_t, size_t>;  // Offset to bytes.

// Returns where best fit puts a block, by looking at every gap between blocks: in the smallest that is large enough,
// the first one of several, else after the last block.
size_t best_place(const Blocks& blocks, size_t bytes) {
  size_t end = 0, best = 0, best_bytes = 0;
  for (const auto& [offset, length] : blocks) {
    const size_t gap = offset - end;
    if (gap >= bytes && (best_bytes == 0 || gap < best_bytes)) {
      best = end;
      best_bytes = gap;
    }
    end = offset + length;
  }
  return best_bytes > 0 ? best : end;
}

size_t end_of(const Blocks& blocks) { return blocks.empty() ? 0 : blocks.rbegin()->first + blocks.rbegin()->second; }

// Blocks never overlap, and places are found and joined as if all gaps were looked at each time.
TEST(BlockArenaTest, TakesTheSmallestPlaceThatFits) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    BlockArena arena(1'000'000);
    Blocks blocks;
    size_t used = 0, most = 0;
    for (int i = 0; i < 500; ++i) {
      const bool takes = blocks.empty() || random() % 100 < (i < 250 ? 60 : 40);
      if (takes) {
        const size_t bytes = 1 + random() % 40;
        const std::optional<size_t> offset = arena.take(bytes);
        ASSERT_EQ(offset, best_place(blocks, bytes));
        blocks[*offset] = bytes;
        used += bytes;
      } else {
        const auto block = std::next(blocks.begin(), static_cast<int64_t>(random() % blocks.size()));
        arena.put(block->first, block->second);
        used -= block->second;
        blocks.erase(block);
      }
      most = std::max(most, end_of(blocks));
      ASSERT_EQ(arena.used_bytes(), used);
      ASSERT_EQ(arena.most_bytes(), most);
    }
  }
}

TEST(BlockArenaTest, HasNoPlaceBeyondItsCapacity) {
  BlockArena arena(100);
  EXPECT_EQ(arena.take(101), std::nullopt);
  EXPECT_EQ(arena.take(60), 0u);
  EXPECT_EQ(arena.take(41), std::nullopt);
  EXPECT_EQ(arena.take(40), 60u);
  EXPECT_EQ(arena.take(1), std::nullopt);
  arena.put(0, 60);
  EXPECT_EQ(arena.take(61), std::nullopt);
  arena.put(60, 40);
  EXPECT_EQ(arena.take(100), 0u);
  EXPECT_EQ(BlockArena(0).take(1), std::nullopt);
}

}  // namespace
}  // namespace titan::runtime
