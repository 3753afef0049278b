// A stop leads to the attempt's end through grace and signals, even with processes that no signal ends.

#include <algorithm>
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/core/node_world.h"

namespace titan::node {
namespace {

using ::testing::HasSubstr;
using Report = v1::AttemptReport;

// A controller may send any number, but the daemon's timers add it to the present time in 64-bit nanoseconds.
TEST(StopTest, DurationsAreClampedToAHundredYears) {
  EXPECT_EQ(duration_of(1500), absl::Milliseconds(1500));
  EXPECT_EQ(duration_of(0), absl::ZeroDuration());
  EXPECT_EQ(duration_of(-1), absl::ZeroDuration());
  EXPECT_EQ(duration_of(INT64_MIN), absl::ZeroDuration());
  EXPECT_EQ(duration_of(INT64_MAX), 100 * 365 * absl::Hours(24));
  EXPECT_LT(absl::ToInt64Nanoseconds(2 * duration_of(INT64_MAX)), INT64_MAX);
}

// Later requests may shorten the deadline but never extend it, from no deadline up to the longest one.
TEST(StopTest, TheSoonerDeadlineCounts) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  const auto kill_at = [&world] { return world.core().state().attempts.begin()->second.kill_shim_at; };
  EXPECT_EQ(kill_at(), kNever);
  const absl::Duration now = world.now().monotonic;
  world.stop(1, /*save=*/true, INT64_MAX);
  world.settle();
  EXPECT_EQ(kill_at(), now + duration_of(INT64_MAX) + kShimTimeout);
  world.stop(1, /*save=*/true, 4000);
  world.settle();
  EXPECT_EQ(kill_at(), now + absl::Seconds(4) + kShimTimeout);
  world.stop(1, /*save=*/true, 9000);
  world.settle();
  EXPECT_EQ(kill_at(), now + absl::Seconds(4) + kShimTimeout);
}

TEST(StopTest, GraceOfAStopGoesToTheShim) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.stop(1, /*save=*/true, 20'000);
  world.settle();
  const ShimCommand& stop = world.shim(1).got.back();
  EXPECT_EQ(stop.kind, ShimCommand::Kind::kStop);
  EXPECT_TRUE(stop.save);
  EXPECT_EQ(stop.grace_milliseconds, 20'000);
  EXPECT_EQ(stop.reason, "TEST");
  world.advance(absl::Seconds(19));
  EXPECT_EQ(world.running_ranks(1), 2);
  EXPECT_EQ(world.count<KillShim>(), 0);
  world.advance(absl::Seconds(2));
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).exits(0).signal(), 9);
  EXPECT_EQ(world.last(1).exits(0).stop_reason(), "TEST");
  EXPECT_EQ(world.count<KillShim>(), 0);
}

TEST(StopTest, RanksThatSaveInTimeAreNotKilled) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.stop(1, /*save=*/true, 20'000);
  world.advance(absl::Seconds(5));
  for (const int rank : {0, 1}) world.rank_exits(1, rank, 16);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).exits(1).exit_code(), 16);
  world.advance(absl::Seconds(60));
  EXPECT_EQ(world.count<KillShim>(), 0);
  EXPECT_EQ(world.last(1).error_reason(), "");
}

// A shim that hangs cannot end its ranks, but its death does: it is killed three seconds after the grace.
TEST(StopTest, AHangingShimIsKilledAfterTheGrace) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.hang_shim(1);
  world.stop(1, /*save=*/false, 5'000);
  world.advance(absl::Seconds(8) - absl::Milliseconds(1));
  EXPECT_EQ(world.count<KillShim>(), 0);
  EXPECT_EQ(world.running_ranks(1), 2);
  world.advance(absl::Milliseconds(2));
  EXPECT_EQ(world.count<KillShim>(), 1);
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "SHIM_LOST");
  ASSERT_EQ(world.last(1).exits_size(), 2);
  EXPECT_EQ(world.last(1).exits(0).signal(), 9);
}

// The disk is slow: until the end is recorded, a report would say that the attempt lives, and the controller would stop
// it again. The two would answer each other at the network's speed.
TEST(StopTest, NoReportWhileTheEndIsBeingRecorded) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.hang<WriteRecord>();
  world.stop(1);
  world.settle();
  world.clear_messages();
  for (int i = 0; i < 3; ++i) {
    world.stop(1);
    world.settle();
  }
  EXPECT_TRUE(world.reports().empty());
  world.release<WriteRecord>();
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  world.clear_messages();
  world.stop(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
}

// A repeated request never gives more time, and may give less.
TEST(StopTest, ASecondStopShortensTheFirst) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.hang_shim(1);
  world.stop(1, true, 60'000);
  world.advance(absl::Seconds(1));
  world.stop(1, false, 0);
  world.advance(absl::Seconds(3) + absl::Milliseconds(1));
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
}

// A rank hangs in the kernel: the report names it and its state, the attempt's devices stay in use, a shim that answers
// is not killed, and the end is reported once the rank is gone.
TEST(StopTest, UnkillableRanksAreReportedAndKeepTheirDevices) {
  NodeWorld world;
  world.connect();
  world.launch(1, 4);
  world.unkillable.insert(world.shim(1).ranks[2].pid);
  world.stop(1, false, 0, /*deadline_milliseconds=*/4'000);
  world.advance(absl::Milliseconds(3900));
  EXPECT_EQ(world.last(1).error_reason(), "");
  world.advance(absl::Milliseconds(200));
  EXPECT_EQ(world.last(1).phase(), Report::STARTED);
  EXPECT_EQ(world.last(1).error_reason(), "STOP_TIMEOUT");
  EXPECT_THAT(world.last(1).error_message(), HasSubstr("rank 2 (pid "));
  EXPECT_THAT(world.last(1).error_message(), HasSubstr("in state D"));
  EXPECT_EQ(world.last(1).exits_size(), 3);
  world.advance(absl::Seconds(30));
  EXPECT_EQ(world.count<KillShim>(), 0);
  EXPECT_TRUE(world.core().free_devices().empty());
  const v1::Register hello = world.core().make_register(world.now());
  EXPECT_EQ(hello.inventory(0).device_indices_size(), 4);
  // A newer attempt waits for it and is refused with that reason after its deadline.
  world.prepare(2, 1, true, /*deadline_milliseconds=*/10'000);
  world.advance(absl::Seconds(11));
  EXPECT_EQ(world.last(2).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(2).error_reason(), "PREPARE_TIMEOUT");
  EXPECT_THAT(world.last(2).error_message(), HasSubstr("attempt 1 of the same job has not ended"));
  EXPECT_THAT(world.last(2).error_message(), HasSubstr("in state D"));
  world.end_unkillable();
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "");
  EXPECT_EQ(world.last(1).exits_size(), 4);
  EXPECT_EQ(world.core().free_devices().size(), 4u);
}

// A refused attempt with a hanging shim holds its devices, is not forgotten, and lets no newer attempt start before it
// is gone.
TEST(StopTest, RefusedAttemptKeepsDevicesOfALiveShim) {
  for (const bool forget : {false, true}) {
    NodeWorld world;
    world.connect();
    world.prepare(1, 3);
    world.settle();
    world.hang_shim(1);
    world.token_refusal = "DUMP_FOLDER_NOT_SHARED";
    world.start(1);
    world.settle();
    EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
    EXPECT_EQ(world.core().free_devices().size(), 1u);
    if (forget) world.forget(1);
    world.prepare(2, 1);
    world.advance(absl::Seconds(2));
    EXPECT_EQ(world.core().state().attempts.count({"u1", 1}), 1u);
    EXPECT_EQ(world.last(2).phase(), Report::PHASE_UNSPECIFIED);
    world.advance(absl::Seconds(2));
    EXPECT_EQ(world.count<KillShim>(), 1);
    EXPECT_EQ(world.last(2).phase(), Report::PREPARED);
    EXPECT_EQ(world.core().free_devices().size(), 3u);
    EXPECT_EQ(world.core().state().attempts.count({"u1", 1}), forget ? 0u : 1u);
  }
}

// The shim is dead but one of its ranks is not: nothing ends and no device is freed until it is gone.
TEST(StopTest, ARankThatOutlivesItsShimKeepsItsDevice) {
  NodeWorld world;
  world.connect();
  world.launch(1, 2);
  world.unkillable.insert(world.shim(1).ranks[0].pid);
  world.kill_shim(1);
  world.advance(absl::Seconds(20));
  EXPECT_EQ(world.last(1).phase(), Report::STARTED);
  EXPECT_EQ(world.core().free_devices().size(), 2u);
  world.stop(1);
  world.advance(kStopTimeout + absl::Seconds(3));
  EXPECT_EQ(world.last(1).error_reason(), "STOP_TIMEOUT");
  world.end_unkillable();
  world.advance(absl::Seconds(2));
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "SHIM_LOST");
  EXPECT_EQ(world.core().free_devices().size(), 4u);
}

// With --stop-ranks-on-exit the first signal saves and a second SIGINT kills. A burst of signals counts once, and a
// batch system may repeat SIGTERM.
TEST(StopTest, ShutdownSavesThenKillsThenLeaves) {
  NodeConfig config = NodeWorld::default_config();
  config.stop_ranks_on_exit = true;
  NodeWorld world(config);
  world.connect();
  world.launch(1);
  world.feed(Shutdown{});
  world.feed(Shutdown{});
  world.settle();
  EXPECT_TRUE(world.shim(1).got.back().save);
  EXPECT_EQ(world.shim(1).got.back().grace_milliseconds, 30'000);
  world.prepare(2, 1);
  world.settle();
  EXPECT_EQ(world.last(2).error_reason(), "NODE_STOPPING");
  world.advance(absl::Seconds(1));
  EXPECT_EQ(world.running_ranks(1), 2);
  world.feed(Shutdown{});
  world.advance(absl::Seconds(1));
  EXPECT_EQ(world.running_ranks(1), 2) << "SIGTERM again";
  EXPECT_FALSE(world.exited());
  world.feed(Shutdown{.immediate = true});
  world.settle();
  EXPECT_EQ(world.running_ranks(1), 0);
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_FALSE(world.exited()) << "the last reports are sent first";
  world.advance(absl::Seconds(1));
  EXPECT_TRUE(world.exited());
}

TEST(StopTest, ShutdownInEveryState) {
  NodeConfig config = NodeWorld::default_config();
  config.stop_ranks_on_exit = true;
  for (int steps = 0; steps < 20; ++steps) {
    NodeWorld world(config);
    world.connect();
    world.prepare(1);
    world.start(1);
    for (int i = 0; i < steps; ++i) world.run_one();
    world.feed(Shutdown{});
    world.advance(absl::Seconds(40));
    EXPECT_TRUE(world.exited()) << steps;
    EXPECT_EQ(world.running_ranks(1), 0) << steps;
  }
}

TEST(StopTest, ShutdownWithoutTheFlagLeavesRanksRunning) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.feed(Shutdown{});
  EXPECT_TRUE(world.exited());
  EXPECT_EQ(world.running_ranks(1), 2);
}

}  // namespace
}  // namespace titan::node
