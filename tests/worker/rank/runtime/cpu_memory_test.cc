#include "worker/rank/runtime/memory/cpu_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace titan::runtime {
namespace {

// The next step's tensors reuse the memory of the last step, whatever the order in which it was freed.
TEST(CpuMemoryTest, FreedBlockIsReusedWithinItsClass) {
  CachingCpuAllocator& memory = cpu_memory();
  c10::DataPtr first = memory.allocate(1'000'000);
  void* place = first.get();
  const int64_t fresh = memory.counts().fresh_blocks;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 64, 0u);
  std::memset(place, 1, 1'000'000);
  first.clear();
  c10::DataPtr other = memory.allocate(600'000);
  EXPECT_NE(other.get(), place);
  EXPECT_EQ(memory.counts().fresh_blocks, fresh + 1);
  c10::DataPtr again = memory.allocate(999'000);
  EXPECT_EQ(again.get(), place);
  EXPECT_EQ(memory.counts().fresh_blocks, fresh + 1);
}

TEST(CpuMemoryTest, CountsLiveAndCachedBytes) {
  CachingCpuAllocator& memory = cpu_memory();
  const CpuAllocatorStats before = memory.counts();
  {
    const c10::DataPtr block = memory.allocate(3 << 20);
    EXPECT_EQ(memory.counts().live_bytes - before.live_bytes, 3 << 20);
  }
  EXPECT_EQ(memory.counts().live_bytes, before.live_bytes);
  EXPECT_GE(memory.counts().cached_bytes, 3 << 20);
}

// When sizes change, idle blocks of the old sizes are freed, so the memory of two phases does not add up.
TEST(CpuMemoryTest, IdleBlocksAreFreedForOtherSizes) {
  CachingCpuAllocator& memory = cpu_memory();
  for (size_t i = 0; i < 3; ++i) {
    const c10::DataPtr block = memory.allocate((100 + 15 * i) << 20);  // Never touched: it needs only addresses.
  }
  EXPECT_GT(memory.counts().cached_bytes, 300 << 20);
  const c10::DataPtr large = memory.allocate(300 << 20);
  EXPECT_EQ(memory.counts().cached_bytes, 0);
}

TEST(CpuMemoryTest, EmptyAndSmallTensorsWork) {
  CachingCpuAllocator& memory = cpu_memory();
  EXPECT_EQ(memory.allocate(0).get(), nullptr);
  c10::DataPtr small = memory.allocate(8);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.get()) % 64, 0u);
  void* raw = memory.raw_allocate(100'000);
  memory.raw_deallocate(raw);
}

// Gloo's threads free memory that the training thread allocated.
TEST(CpuMemoryTest, ThreadsShareIt) {
  CachingCpuAllocator& memory = cpu_memory();
  const int64_t live = memory.counts().live_bytes;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (int i = 0; i < 500; ++i) {
        c10::DataPtr block = memory.allocate(static_cast<size_t>(40'000 + 9'000 * (i % 7)));
        std::memset(block.get(), t, 40'000);
        ASSERT_EQ(static_cast<char*>(block.get())[39'999], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.counts().live_bytes, live);
}

}  // namespace
}  // namespace titan::runtime
