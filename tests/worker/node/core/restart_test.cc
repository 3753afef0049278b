// The daemon dies at every point, and the next one continues from the disk.

#include "gtest/gtest.h"
#include "tests/worker/node/core/node_world.h"

namespace titan::node {
namespace {

using Report = v1::AttemptReport;
using Phase = AttemptRecord::Phase;

// Runs one life of an attempt in which the daemon dies after `steps` items. With `between` it dies after an effect and
// before its completion.
void run_life_with_crash(int steps, bool between) {
  NodeWorld world;
  world.connect();
  int left = steps;
  const auto settle = [&] {
    while (left > 0 && world.run_one()) --left;
    if (left > 0) return;
    if (left-- == 0) {
      if (between) {
        world.run_one_and_crash();
      } else {
        world.restart();
      }
      world.connect();
    }
    world.settle();
  };
  // A controller repeats unanswered commands and accepts a refusal as an answer.
  world.prepare(1);
  settle();
  for (int tries = 0; tries < 3 && world.last(1).phase() == Report::PHASE_UNSPECIFIED; ++tries) {
    world.prepare(1);
    settle();
  }
  ASSERT_EQ(world.last(1).phase(), Report::PREPARED);
  for (int tries = 0; tries < 3 && world.last(1).phase() != Report::STARTED; ++tries) {
    world.start(1);
    settle();
  }
  ASSERT_EQ(world.last(1).phase(), Report::STARTED);
  ASSERT_EQ(world.running_ranks(1), 2);
  const std::vector<int64_t> pids = {world.shim(1).ranks[0].pid, world.shim(1).ranks[1].pid};
  for (const int rank : {0, 1}) {
    world.rank_emits(1, rank, 5);
    settle();
    EXPECT_EQ(world.shim(1).ranks[rank].pid, pids[rank]) << "no rank was started again";
    world.rank_exits(1, rank, rank == 0 ? 0 : 11);
    settle();
  }
  world.advance(absl::Seconds(2));
  const Report last = world.last(1);
  EXPECT_EQ(last.phase(), Report::ENDED);
  EXPECT_EQ(last.error_reason(), "");
  ASSERT_EQ(last.exits_size(), 2);
  EXPECT_EQ(last.exits(1).exit_code(), 11);
  for (const int rank : {0, 1}) EXPECT_EQ(world.events_of(1, rank), 5);
  EXPECT_EQ(world.gaps(), 0);
  EXPECT_EQ(world.core().free_devices().size(), 4u);
  world.forget(1);
  settle();
  world.forget(1);
  settle();
  EXPECT_TRUE(world.core().state().attempts.empty());
  EXPECT_EQ(world.disk.records.at({"u1", 1}).phase, Phase::kForgotten);
}

TEST(RestartTest, TheDaemonDiesAtEveryStep) {
  for (const bool between : {false, true}) {
    for (int steps = 0; steps < 70; ++steps) {
      SCOPED_TRACE(testing::Message() << "step " << steps << (between ? ", between an effect and its completion" : ""));
      run_life_with_crash(steps, between);
    }
  }
}

TEST(RestartTest, TheInventoryNamesWhatRuns) {
  NodeWorld world;
  world.connect();
  world.launch(1, 2);
  world.hang_shim(1);  // The shim answers after the first session is open.
  world.restart();
  world.connect();
  ASSERT_EQ(world.registered().inventory_size(), 1);
  const v1::AttemptInventory& item = world.registered().inventory(0);
  EXPECT_EQ(item.phase(), Report::STARTED);
  EXPECT_EQ(item.devices(), 2);
  EXPECT_EQ(item.job(), "name");
  EXPECT_EQ(item.ranks(1).pid(), world.shim(1).ranks[1].pid);
  EXPECT_EQ(world.core().free_devices().size(), 2u);
  world.wake_shim(1);
  world.stop(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
}

// A record in every phase is found, with a shim that is alive, gone or unreadable.
TEST(RestartTest, RecordsOfEveryPhaseAreRecovered) {
  NodeWorld world;
  world.connect();
  world.launch(1, 2);
  const AttemptRecord live = world.disk.records.at({"u1", 1});
  for (const Phase phase : {Phase::kPreparing, Phase::kLive, Phase::kEnded, Phase::kRefused}) {
    for (const bool alive : {true, false}) {
      SCOPED_TRACE(testing::Message() << "phase " << static_cast<int>(phase) << " alive " << alive);
      NodeWorld next;
      next.disk.records[live.key] = live;
      next.disk.records[live.key].phase = phase;
      if (phase != Phase::kEnded || !alive) {
        next.shims = world.shims;
        if (phase == Phase::kPreparing) {
          next.shim(1).started = false;
          for (NodeWorld::Rank& rank : next.shim(1).ranks) rank = {.rank = rank.rank};
          next.shim(1).written->ranks.clear();
        }
        if (!alive) next.kill_shim(1);
      }
      next.restart();
      next.connect();
      next.advance(absl::Seconds(10));
      const Report::Phase reported = next.last(1).phase();
      switch (phase) {
        case Phase::kPreparing:
          EXPECT_EQ(reported, alive ? Report::PREPARED : Report::REFUSED);
          break;
        case Phase::kLive:
          EXPECT_EQ(reported, alive ? Report::STARTED : Report::ENDED);
          break;
        case Phase::kRefused:
          EXPECT_EQ(reported, Report::REFUSED);
          EXPECT_FALSE(next.shim(1).alive) << "its running shim is ended";
          break;
        default:
          EXPECT_EQ(reported, Report::ENDED);
      }
      const bool runs = alive && (phase == Phase::kPreparing || phase == Phase::kLive);
      EXPECT_EQ(next.core().free_devices().size(), runs ? 2u : 4u);
      next.forget(1);
      next.settle();
      EXPECT_TRUE(next.core().state().attempts.empty());
    }
  }
}

TEST(RestartTest, PreparationWithoutAShimIsDiscarded) {
  NodeWorld world;
  world.connect();
  world.hang<PrepareFolder>();
  world.prepare(1);
  world.settle();
  world.restart();
  world.settle();
  EXPECT_TRUE(world.disk.records.empty());
  world.release<PrepareFolder>();
  world.connect();
  EXPECT_EQ(world.registered().inventory_size(), 0);
  world.prepare(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::PREPARED);
}

TEST(RestartTest, ReportsThatTheMachineWasRestarted) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.kill_shim(1);
  world.rebooted = true;
  world.restart();
  world.connect();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "SHIM_LOST");
  EXPECT_EQ(world.last(1).error_message(), "the node was restarted");
}

TEST(RestartTest, AttemptWithUnknownShimStateIsKept) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.unreadable = "Input/output error";
  world.restart();
  world.connect();
  world.advance(absl::Seconds(10));
  EXPECT_EQ(world.core().free_devices().size(), 2u);
  EXPECT_NE(world.last(1).phase(), Report::ENDED);
  world.unreadable.clear();
  world.advance(absl::Seconds(3));
  EXPECT_EQ(world.last(1).phase(), Report::STARTED);
  EXPECT_EQ(world.running_ranks(1), 2);
}

// Every daemon reports the end until it is forgotten, even exits that no shim recorded.
TEST(RestartTest, EndIsReportedAgainWithAllExits) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.disconnect();
  world.rank_exits(1, 0, 3);
  world.settle();
  world.kill_shim(1);
  world.settle();
  for (int daemon = 0; daemon < 2; ++daemon) {
    world.restart();
    world.connect();
    EXPECT_EQ(world.last(1).phase(), Report::ENDED);
    EXPECT_EQ(world.last(1).error_reason(), "SHIM_LOST");
    ASSERT_EQ(world.last(1).exits_size(), 2);
    EXPECT_EQ(world.last(1).exits(0).exit_code(), 3);
    EXPECT_EQ(world.last(1).exits(1).signal(), 9);
  }
}

// A stop that the last daemon forwarded continues without it.
TEST(RestartTest, AStopOutlivesTheDaemon) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.stop(1, true, 10'000);
  world.settle();
  world.restart();
  world.connect();
  world.advance(absl::Seconds(11));
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).exits(0).stop_reason(), "TEST");
}

TEST(RestartTest, OrphansAreNamed) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.shim(1).stop_reason = "ORPHANED";
  world.rank_exits(1, 0, 16);
  world.restart();
  world.connect();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "ORPHANED");
}

}  // namespace
}  // namespace titan::node
