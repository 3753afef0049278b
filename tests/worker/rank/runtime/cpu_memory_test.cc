#include "worker/rank/runtime/memory/cpu_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
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
  const int64_t before = memory.counts().cached_bytes;
  {
    std::vector<c10::DataPtr> blocks;  // Never touched: they need only addresses.
    for (int i = 0; i < 100; ++i) blocks.push_back(memory.allocate(7 << 19));
  }
  EXPECT_GT(memory.counts().cached_bytes - before, 300 << 20);
  const c10::DataPtr other = memory.allocate(5 << 19);
  EXPECT_LE(memory.counts().cached_bytes, before);
}

int64_t held_bytes() { return cpu_memory().counts().live_bytes + cpu_memory().counts().cached_bytes; }

// Gathered weights and activations of other sizes take the same memory, one after the other.
TEST(CpuMemoryTest, LargeBlocksOfOtherSizesTakeTheSameMemory) {
  CachingCpuAllocator& memory = cpu_memory();
  c10::DataPtr first = memory.allocate(100 << 20);
  const char* const begin = static_cast<const char*>(first.get());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 64, 0u);
  first.clear();
  const int64_t fresh = memory.counts().fresh_blocks, held = held_bytes();
  std::vector<c10::DataPtr> others;
  for (const size_t bytes : {size_t{30} << 20, size_t{50'000'001}, size_t{4} << 20}) {
    others.push_back(memory.allocate(bytes));
    const char* const data = static_cast<const char*>(others.back().get());
    EXPECT_TRUE(data >= begin && data + bytes <= begin + (100 << 20));
  }
  EXPECT_EQ(memory.counts().fresh_blocks, fresh);
  EXPECT_NEAR(held_bytes(), held, 1024);  // Headers are not counted as live.
}

// Large blocks that lie next to each other become one place, whatever the order in which they are freed.
TEST(CpuMemoryTest, FreedLargeBlocksAreJoined) {
  CachingCpuAllocator& memory = cpu_memory();
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(memory.allocate(20 << 20));
  const int64_t fresh = memory.counts().fresh_blocks;
  for (const size_t freed : {1, 3, 0, 2}) blocks[freed].clear();
  const c10::DataPtr joined = memory.allocate(80 << 20);
  EXPECT_EQ(memory.counts().fresh_blocks, fresh);
}

// A process whose addresses are limited keeps large blocks by size, because other allocations need the addresses.
TEST(CpuMemoryDeathTest, LimitedAddressesAreNotReserved) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto allocate_with_limit = [] {
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = rlim_t{1} << 60;
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(1);
    CachingCpuAllocator& memory = cpu_memory();
    memory.allocate(100 << 20).clear();
    const c10::DataPtr same = memory.allocate(99 << 20), other = memory.allocate(30 << 20);
    std::exit(memory.counts().fresh_blocks == 2 ? 0 : 2);
  };
  EXPECT_EXIT(allocate_with_limit(), ::testing::ExitedWithCode(0), "");
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
