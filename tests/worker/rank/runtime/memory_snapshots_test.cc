// Tests snapshots of the CPU's allocator: their content, when they are written, and that they never end a rank.
#include "worker/rank/runtime/profiling/memory_snapshots.h"

#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "tests/common/rank_protocol/temp_folder.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/device/trace_scope.h"
#include "worker/rank/runtime/memory/cpu_memory.h"

namespace titan::runtime {
namespace {

using device::MemoryAction;
using device::MemoryBlock;
using device::MemorySnapshot;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<MemoryAction> actions(const MemorySnapshot& snapshot) {
  std::vector<MemoryAction> all;
  for (const device::MemoryEvent& event : snapshot.events) all.push_back(event.action);
  return all;
}

int32_t no_stack() { return 0; }

// Checks a snapshot as a viewer reads it: going back event by event from the blocks at the end must lead to no blocks.
void expect_consistent(const MemorySnapshot& snapshot) {
  std::map<uint64_t, int64_t> segments, blocks;
  for (const device::MemorySegment& segment : snapshot.segments) {
    segments[segment.address] = segment.bytes;
    ASSERT_EQ(segment.blocks.size(), 1u);
    EXPECT_EQ(segment.blocks[0].bytes, segment.bytes);
    if (segment.blocks[0].state != MemoryBlock::State::kFree)
      blocks[segment.address] = segment.blocks[0].requested_bytes;
  }
  for (auto event = snapshot.events.rbegin(); event != snapshot.events.rend(); ++event) {
    switch (event->action) {
      case MemoryAction::kSegmentFree:
        EXPECT_TRUE(segments.emplace(event->address, event->bytes).second);
        break;
      case MemoryAction::kFreeCompleted:
        EXPECT_TRUE(segments.contains(event->address));
        EXPECT_TRUE(blocks.emplace(event->address, event->bytes).second);
        break;
      case MemoryAction::kAlloc:
        EXPECT_EQ(blocks[event->address], event->bytes);
        blocks.erase(event->address);
        break;
      case MemoryAction::kSegmentAlloc:
        EXPECT_EQ(segments[event->address], event->bytes);
        EXPECT_FALSE(blocks.contains(event->address));
        segments.erase(event->address);
        break;
      default:
        break;
    }
  }
  EXPECT_TRUE(blocks.empty());
}

TEST(CpuHistoryTest, RecordsTheEventsOfABlock) {
  using enum MemoryAction;
  CpuHistory history;
  char cached[8], small[8];
  history.begin(100, no_stack);
  history.allocated(cached, 40'000, 40'960, /*fresh=*/true);
  history.allocated(small, 10, 10, /*fresh=*/true);
  history.freed(cached, /*kept=*/true);
  history.allocated(cached, 40'900, 40'960, /*fresh=*/false);
  history.freed(small, /*kept=*/false);
  MemorySnapshot snapshot = history.snapshot();
  EXPECT_THAT(actions(snapshot), ElementsAre(kSegmentAlloc, kAlloc, kSegmentAlloc, kAlloc, kFreeRequested,
                                             kFreeCompleted, kAlloc, kFreeRequested, kFreeCompleted, kSegmentFree));
  expect_consistent(snapshot);
  ASSERT_EQ(snapshot.segments.size(), 1u);
  EXPECT_EQ(snapshot.segments[0].bytes, 40'960);
  EXPECT_EQ(snapshot.segments[0].blocks[0].requested_bytes, 40'900);

  history.freed(cached, /*kept=*/true);
  history.returned(cached);
  snapshot = history.snapshot();
  EXPECT_EQ(snapshot.events.back().action, kSegmentFree);
  EXPECT_TRUE(snapshot.segments.empty());
  expect_consistent(snapshot);
}

TEST(CpuHistoryTest, KeepsTheLastEventsAndAllBlocks) {
  CpuHistory history;
  const std::vector<char> place(100);
  history.begin(10, no_stack);
  for (size_t i = 0; i < place.size(); ++i) history.allocated(&place[i], i + 1, i + 1, /*fresh=*/false);
  const MemorySnapshot snapshot = history.snapshot();
  ASSERT_EQ(snapshot.events.size(), 10u);
  EXPECT_EQ(snapshot.events.front().bytes, 91);
  EXPECT_EQ(snapshot.events.back().bytes, 100);
  EXPECT_EQ(snapshot.segments.size(), 100u);
}

TEST(CpuHistoryTest, OmitsEarlierAllocations) {
  CpuHistory history;
  const char before = 0;
  history.allocated(&before, 10, 10, /*fresh=*/true);
  history.begin(10, no_stack);
  history.freed(&before, /*kept=*/true);
  history.returned(&before);
  EXPECT_TRUE(history.snapshot().events.empty());
  history.end();
  history.allocated(&before, 10, 10, /*fresh=*/true);
  EXPECT_TRUE(history.snapshot().segments.empty());
}

class MemorySnapshotsTest : public ::testing::Test {
 protected:
  MemorySnapshotsTest() {
    config_.enable_memory_snapshot = true;
    config_.profile_freq = 3;
  }
  MemorySnapshots snapshots(storage::Files& files = storage::posix_files(), bool writes = true) {
    return {config_,
            {.folder = folder_.path() + "/snapshots",
             .rank = 4,
             .writes = writes,
             .say = [this](const std::string& text) { messages_.push_back(text); },
             .warn = [this](const std::string& text) { warnings_.push_back(text); },
             .files = &files},
            *device_};
  }
  // Returns the sorted paths of the files, relative to the folder.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (entry.is_regular_file()) names.push_back(std::filesystem::relative(entry.path(), folder_.path()));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const rank_protocol::TempFolder folder_;
  const std::unique_ptr<device::Device> device_ = comm::make_cpu_device();
  config::ProfilingSection config_;
  std::vector<std::string> messages_, warnings_;
};

TEST_F(MemorySnapshotsTest, FollowTorchtitansScheduleAndNames) {
  MemorySnapshots snapshots = this->snapshots();
  for (int64_t step = 2; step <= 7; ++step) snapshots.end_step(step);
  EXPECT_THAT(files(), ElementsAre("snapshots/iteration_3/rank4_memory_snapshot.pickle",
                                   "snapshots/iteration_6/rank4_memory_snapshot.pickle"));
  EXPECT_EQ(messages_.size(), 2u);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(MemorySnapshotsTest, WritesNothingIfOffOrNotTheWriter) {
  {
    MemorySnapshots snapshots = this->snapshots(storage::posix_files(), /*writes=*/false);
    snapshots.end_step(3);
    EXPECT_FALSE(cpu_memory().history().records());
  }
  config_.enable_memory_snapshot = false;
  MemorySnapshots snapshots = this->snapshots();
  EXPECT_FALSE(cpu_memory().history().records());
  snapshots.end_step(3);
  EXPECT_TRUE(files().empty());
}

TEST_F(MemorySnapshotsTest, OnlyOutOfMemoryWritesALastOne) {
  MemorySnapshots snapshots = this->snapshots();
  try {
    TORCH_CHECK(false, "something else");
  } catch (...) {
    snapshots.failed(4);
  }
  EXPECT_TRUE(files().empty());
  try {
    (void)cpu_memory().allocate(size_t{1} << 60);
    FAIL() << "no machine has that much memory";
  } catch (...) {
    snapshots.failed(4);
  }
  EXPECT_THAT(files(), ElementsAre("snapshots/iteration_4_exit/rank4_memory_snapshot.pickle"));
  EXPECT_EQ(cpu_memory().history().snapshot().events.back().action, MemoryAction::kOutOfMemory);
}

TEST_F(MemorySnapshotsTest, OneThatCannotBeWrittenIsAWarning) {
  std::ofstream(folder_.path() + "/snapshots") << "a file";
  MemorySnapshots snapshots = this->snapshots();
  snapshots.end_step(3);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("the memory snapshot is lost: "));
  EXPECT_TRUE(messages_.empty());
}

// An allocation has the scopes in which it was made, the innermost first, from the operation to Titan's own. The scopes
// of steps are left out, since their names differ each time.
TEST(MemoryHistoryTest, RecordsTheScopesOfAllocations) {
  const std::unique_ptr<device::Device> device = comm::make_cpu_device();
  const device::ScopeNames names;
  const MemoryHistory history(*device, 100);
  c10::DataPtr mine, helpers, others;
  {
    const device::TraceScope step([] { return "ProfilerStep#7"; });
    const device::TraceScope phase([] { return "forward 0F0"; });
    const device::TraceScope block([] { return "layers.0"; });
    mine = cpu_memory().allocate(50'001);
    std::thread([&, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard for_the_rank(state);
      const device::TraceScope help([] { return "a helper"; });
      helpers = cpu_memory().allocate(50'002);
    }).join();
    std::thread([&] { others = cpu_memory().allocate(50'003); }).join();
  }
  std::map<int64_t, std::vector<std::string>> scopes;
  const MemorySnapshot snapshot = history.snapshot();
  for (const device::MemoryEvent& event : snapshot.events) {
    if (event.action == MemoryAction::kAlloc) scopes[event.bytes] = snapshot.scopes[event.scopes];
  }
  EXPECT_THAT(scopes[50'001], ElementsAre("layers.0", "forward 0F0"));
  EXPECT_THAT(scopes[50'002], ElementsAre("a helper"));
  EXPECT_THAT(scopes[50'003], ElementsAre());
}

// On a GPU the backward pass runs on autograd's thread, while the rank's thread waits in its block's scope: the
// allocations must have that scope.
TEST(MemoryHistoryTest, AutogradThreadsHaveTheWaitingThreadsScopes) {
  device::ScopeTable table;
  const device::ScopeNames names;
  std::vector<int32_t> numbers;
  const device::TraceScope block([] { return "layers.1 backward"; });
  std::thread([&, rank = at::RecordFunction::currentThreadId(), state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard for_the_rank(state);
    {
      at::RecordFunction node(at::RecordScope::BACKWARD_FUNCTION);
      node.setForwardThreadId(rank);
      node.before("MmBackward0");
      numbers.push_back(table.now());
    }
    numbers.push_back(table.now());
  }).join();
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_THAT(table.stacks()[numbers[0]], ElementsAre("MmBackward0", "layers.1 backward"));
  EXPECT_EQ(numbers[1], 0);
}

TEST(MemoryHistoryTest, ThreadsShareItAndEveryFreeHasItsAllocation) {
  const std::unique_ptr<device::Device> device = comm::make_cpu_device();
  const MemoryHistory history(*device, 1'000'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::vector<c10::DataPtr> held(5);
      for (size_t i = 0; i < 500; ++i) held[i % 5] = cpu_memory().allocate(20'000 + 9'000 * ((i + t) % 7));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MemorySnapshot snapshot = history.snapshot();
  const std::vector<MemoryAction> all = actions(snapshot);
  EXPECT_GE(std::count(all.begin(), all.end(), MemoryAction::kAlloc), 2'000);
  expect_consistent(snapshot);
}

}  // namespace
}  // namespace titan::runtime
