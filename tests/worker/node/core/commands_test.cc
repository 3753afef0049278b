// Every command is handled in every state: once, twice, late and out of order.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/core/node_world.h"

namespace titan::node {
namespace {

using ::testing::HasSubstr;
using Report = v1::AttemptReport;

TEST(CommandsTest, AnAttemptFromPrepareToForget) {
  NodeWorld world;
  world.connect();
  world.prepare(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::PREPARED);
  EXPECT_EQ(world.last(1).store_port(), 7);
  EXPECT_EQ(world.last(1).folder_id(), "folder");
  EXPECT_EQ(world.core().free_devices().size(), 2u);
  world.start(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::STARTED);
  EXPECT_EQ(world.core().running_ranks(), 2);
  const ShimCommand& start = world.shim(1).got.front();
  EXPECT_EQ(start.kind, ShimCommand::Kind::kStart);
  EXPECT_EQ(start.store_host, "host");
  EXPECT_EQ(start.store_port, 7);
  world.rank_emits(1, 0, 3);
  world.rank_exits(1, 0, 0);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::STARTED);
  ASSERT_EQ(world.last(1).exits_size(), 1);
  EXPECT_EQ(world.last(1).exits(0).rank(), 0);
  EXPECT_EQ(world.events_of(1, 0), 3);
  world.rank_exits(1, 1, 11);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "");
  ASSERT_EQ(world.last(1).exits_size(), 2);
  EXPECT_EQ(world.last(1).exits(1).exit_code(), 11);
  EXPECT_EQ(world.core().free_devices().size(), 4u);
  world.forget(1);
  world.settle();
  EXPECT_TRUE(world.core().state().attempts.empty());
  EXPECT_EQ(world.disk.records.at({"u1", 1}).phase, AttemptRecord::Phase::kForgotten);
}

// The core is a value: a copy does not see the other copy's changes, and equal inputs have equal effects.
TEST(CommandsTest, CopiesAreIndependentAndDeterministic) {
  NodeWorld world;
  world.connect();
  NodeCore copy = world.core();
  const Input prepare = Command{1, NodeWorld::make_prepare(1, 2)};
  EXPECT_EQ(copy.step(prepare, world.now()).size(), 1u);
  EXPECT_TRUE(world.core().state().attempts.empty());
  NodeCore other = world.core();
  EXPECT_EQ(other.step(prepare, world.now()).size(), 1u);
  EXPECT_EQ(other.state().last_op, copy.state().last_op);
  EXPECT_EQ(other.next_deadline(), copy.next_deadline());
}

// At every point of an attempt's life, a repeated command only repeats the report.
TEST(CommandsTest, RepeatedCommandsOnlyRepeatTheReport) {
  for (int steps = 0; steps < 14; ++steps) {
    NodeWorld world;
    world.connect();
    world.prepare(1);
    for (int i = 0; i < steps; ++i) world.run_one();
    world.prepare(1);
    world.settle();
    EXPECT_EQ(world.last(1).phase(), Report::PREPARED) << steps;
    world.start(1);
    for (int i = 0; i < steps; ++i) world.run_one();
    world.start(1);
    world.prepare(1);
    world.settle();
    EXPECT_EQ(world.last(1).phase(), Report::STARTED) << steps;
    EXPECT_EQ(world.count<SpawnShim>(), 1) << steps;
    EXPECT_EQ(world.running_ranks(1), 2) << steps;
    world.stop(1);
    for (int i = 0; i < steps; ++i) world.run_one();
    world.stop(1);
    world.start(1);
    world.settle();
    EXPECT_EQ(world.last(1).phase(), Report::ENDED) << steps;
    EXPECT_EQ(world.last(1).exits_size(), 2) << steps;
    world.forget(1);
    for (int i = 0; i < steps; ++i) world.run_one();
    world.forget(1);
    world.settle();
    EXPECT_TRUE(world.core().state().attempts.empty()) << steps;
    EXPECT_EQ(world.count<ForgetAttempt>(), 1) << steps;
  }
}

// Stop works in every state: the attempt ends, and nothing starts afterwards.
TEST(CommandsTest, StopInEveryState) {
  for (const bool starts : {false, true}) {
    for (int steps = 0; steps < 20; ++steps) {
      NodeWorld world;
      world.connect();
      world.prepare(1);
      if (starts) world.start(1);  // Start arrives before the attempt is prepared, and takes effect after that.
      for (int i = 0; i < steps; ++i) world.run_one();
      world.stop(1);
      world.settle();
      EXPECT_EQ(world.last(1).phase(), Report::ENDED) << starts << " " << steps;
      world.start(1);
      world.settle();
      EXPECT_EQ(world.running_ranks(1), 0) << starts << " " << steps;
      EXPECT_EQ(world.core().free_devices().size(), 4u) << starts << " " << steps;
      world.forget(1);
      world.settle();
      EXPECT_TRUE(world.core().state().attempts.empty());
    }
  }
}

TEST(CommandsTest, ForgetInEveryStateEndsItFirst) {
  for (int steps = 0; steps < 20; ++steps) {
    NodeWorld world;
    world.connect();
    world.prepare(1);
    world.start(1);
    for (int i = 0; i < steps; ++i) world.run_one();
    world.forget(1);
    world.settle();
    EXPECT_TRUE(world.core().state().attempts.empty()) << steps;
    EXPECT_EQ(world.running_ranks(1), 0) << steps;
  }
}

TEST(CommandsTest, CommandsForUnknownAttempts) {
  NodeWorld world;
  world.connect();
  world.start(3);
  world.stop(4);
  world.checkpoint(5);
  world.forget(6);
  world.settle();
  EXPECT_EQ(world.last(3).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(3).error_reason(), "NOT_PREPARED");
  EXPECT_EQ(world.last(4).phase(), Report::ENDED);
  EXPECT_EQ(world.last(4).error_reason(), "NOT_PREPARED");
  EXPECT_EQ(world.reports().size(), 2u);
  world.read_log(7, 0);
  world.settle();
  ASSERT_EQ(world.logs.size(), 1u);
  EXPECT_TRUE(world.logs[0].closed);
}

v1::ControllerMessage prepare_on(int attempt, const std::vector<int>& devices) {
  v1::ControllerMessage message = NodeWorld::make_prepare(attempt, static_cast<int>(devices.size()));
  message.mutable_prepare()->mutable_device_indices()->Assign(devices.begin(), devices.end());
  return message;
}

// Changes the message to a job other than the world's.
v1::ControllerMessage of_another_job(v1::ControllerMessage message) {
  message.mutable_prepare()->mutable_id()->set_job_uid("another");
  return message;
}

TEST(CommandsTest, RanksGetTheDevicesThatTheControllerChose) {
  NodeWorld world;
  world.connect();
  world.command(prepare_on(1, {3, 1}));
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::PREPARED);
  EXPECT_EQ(world.core().free_devices(), (std::set<int>{0, 2}));
  ASSERT_EQ(world.disk.records.size(), 1u);
  EXPECT_EQ(world.disk.records.begin()->second.devices, (std::vector<int>{3, 1}));
  world.command(of_another_job(prepare_on(7, {2})));
  world.settle();
  EXPECT_EQ(world.core().free_devices(), std::set<int>{0});
}

TEST(CommandsTest, RefusesMissingOrTakenDevices) {
  NodeWorld world;
  world.connect();
  world.command(prepare_on(1, {0, 1}));
  world.settle();
  world.command(of_another_job(prepare_on(7, {1, 2})));
  world.settle();
  EXPECT_EQ(world.reports().back().error_reason(), "DEVICE_TAKEN");
  EXPECT_THAT(world.reports().back().error_message(), HasSubstr("device 1 is in use by another attempt"));
  world.command(of_another_job(prepare_on(8, {4})));
  world.settle();
  EXPECT_EQ(world.reports().back().error_reason(), "NO_DEVICES");
  EXPECT_THAT(world.reports().back().error_message(), HasSubstr("no device 4: this node has 4"));
  v1::ControllerMessage uneven = of_another_job(prepare_on(9, {2, 3}));
  uneven.mutable_prepare()->add_ranks(2);
  world.command(uneven);
  world.settle();
  EXPECT_EQ(world.reports().back().error_reason(), "BAD_REQUEST");
  EXPECT_EQ(world.core().free_devices(), (std::set<int>{2, 3}));
}

// An older attempt of the job still has the devices and is being stopped.
TEST(CommandsTest, WaitsForDevicesOfAStoppingAttempt) {
  NodeWorld world;
  world.connect();
  world.command(prepare_on(1, {0, 1}));
  world.settle();
  world.command(prepare_on(2, {1, 0}));
  world.settle();
  EXPECT_EQ(world.last(2).phase(), Report::PREPARED);
  EXPECT_EQ(world.core().free_devices(), (std::set<int>{2, 3}));
}

TEST(CommandsTest, RefusesAttemptsThatCannotRun) {
  NodeWorld world;
  world.connect();
  world.prepare(1, 5);
  world.settle();
  EXPECT_EQ(world.last(1).error_reason(), "NO_DEVICES");
  EXPECT_THAT(world.last(1).error_message(), HasSubstr("5 ranks need a device each, 4 of 4 are free"));
  v1::ControllerMessage outside = NodeWorld::make_prepare(2, 1);
  outside.mutable_prepare()->mutable_id()->set_job_uid("../../etc");
  world.command(outside);
  world.settle();
  EXPECT_EQ(world.reports().back().error_reason(), "BAD_REQUEST");
  world.prepare(3, 0);
  world.prepare(0, 1);
  world.settle();
  EXPECT_EQ(world.last(3).error_reason(), "BAD_REQUEST");
  EXPECT_EQ(world.last(0).error_reason(), "BAD_REQUEST");
  EXPECT_TRUE(world.disk.records.empty());
  world.prepare_refusal = "DUMP_FOLDER_UNUSABLE";
  world.prepare(4, 1);
  world.settle();
  EXPECT_EQ(world.last(4).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(4).error_reason(), "DUMP_FOLDER_UNUSABLE");
  EXPECT_EQ(world.count<SpawnShim>(), 0);
  world.prepare_refusal.clear();
  world.token_refusal = "DUMP_FOLDER_NOT_SHARED";
  world.launch(5, 1);
  EXPECT_EQ(world.last(5).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(5).error_reason(), "DUMP_FOLDER_NOT_SHARED");
  EXPECT_EQ(world.core().free_devices().size(), 4u) << "its shim has ended";
}

// A newer attempt ends the older one first. An older attempt is refused, even by a restarted daemon.
TEST(CommandsTest, AttemptsAreFenced) {
  NodeWorld world;
  world.connect();
  world.launch(2, 4);
  world.prepare(3, 4);
  world.settle();
  EXPECT_EQ(world.last(2).phase(), Report::ENDED);
  EXPECT_EQ(world.last(3).phase(), Report::PREPARED) << "all four devices are free again";
  for (int daemon = 0; daemon < 2; ++daemon) {
    world.prepare(1, 1);
    world.settle();
    EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
    EXPECT_EQ(world.last(1).error_reason(), "STALE_ATTEMPT");
    EXPECT_EQ(world.last(1).highest_attempt(), 3);
    world.clear_messages();
    world.restart();
    world.connect();
  }
}

// Older attempts stay fenced off after the newer one is forgotten and the daemon restarted.
TEST(CommandsTest, FencesOutliveTheirAttempts) {
  NodeWorld world;
  world.connect();
  world.launch(3);
  world.forget(3);
  world.settle();
  ASSERT_TRUE(world.core().state().attempts.empty());
  for (int daemon = 0; daemon < 2; ++daemon) {
    world.prepare(2);
    world.settle();
    EXPECT_EQ(world.last(2).error_reason(), "STALE_ATTEMPT");
    EXPECT_EQ(world.last(2).highest_attempt(), 3);
    EXPECT_EQ(world.count<SpawnShim>(), 1);
    world.clear_messages();
    world.restart();
    world.connect();
  }
}

// At every point of its preparation an attempt gives way to a newer one.
TEST(CommandsTest, NewerAttemptReplacesOneInPreparation) {
  for (int steps = 0; steps < 16; ++steps) {
    NodeWorld world;
    world.connect();
    world.prepare(1, 4);
    for (int i = 0; i < steps; ++i) world.run_one();
    world.prepare(2, 4);
    world.settle();
    EXPECT_EQ(world.last(2).phase(), Report::PREPARED) << steps;
    EXPECT_TRUE(world.last(1).phase() == Report::ENDED || world.last(1).phase() == Report::REFUSED) << steps;
    world.start(1);
    world.start(2);
    world.settle();
    EXPECT_EQ(world.running_ranks(1), 0) << steps;
    EXPECT_EQ(world.running_ranks(2), 4) << steps;
  }
}

// When one job replaces another, Stop and Prepare arrive together: the new attempt waits for the devices of the old
// one.
TEST(CommandsTest, StopAndPrepareArriveTogether) {
  NodeWorld world;
  world.connect();
  world.launch(1, 4);
  v1::ControllerMessage other = NodeWorld::make_prepare(1, 4);
  other.mutable_prepare()->mutable_id()->set_job_uid("u2");
  world.stop(1);
  world.command(other);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.reports().back().id().job_uid(), "u2");
  EXPECT_EQ(world.reports().back().phase(), Report::PREPARED);
}

TEST(CommandsTest, CheckpointsGoToTheShim) {
  NodeWorld world;
  world.connect();
  world.prepare(1);
  world.checkpoint(1);  // The attempt has nothing to save yet.
  world.settle();
  EXPECT_TRUE(world.shim(1).got.empty());
  world.start(1);
  world.checkpoint(1);
  world.settle();
  EXPECT_EQ(std::count_if(world.shim(1).got.begin(), world.shim(1).got.end(),
                          [](const ShimCommand& it) { return it.kind == ShimCommand::Kind::kCheckpoint; }),
            1);
}

TEST(CommandsTest, LogIsClosedWhenItsRankHasEnded) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.read_log(1, 0);
  world.settle();
  EXPECT_FALSE(world.logs.back().closed);
  world.rank_exits(1, 0, 0);
  world.settle();
  world.read_log(1, 0);
  world.read_log(1, 1);
  world.read_log(1, 9);
  world.settle();
  ASSERT_EQ(world.logs.size(), 4u);
  EXPECT_TRUE(world.logs[1].closed);
  EXPECT_FALSE(world.logs[2].closed);
  EXPECT_TRUE(world.logs[3].closed) << "a rank of another node";
}

// A command for an attempt that is being forgotten waits until the attempt is gone, and is then answered accordingly.
TEST(CommandsTest, CommandsAfterAForgetFindTheAttemptGone) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.stop(1);
  world.settle();
  world.hang<ForgetAttempt>();
  world.forget(1);
  world.read_log(1, 0);
  world.stop(1);
  world.settle();
  EXPECT_TRUE(world.logs.empty());
  world.release<ForgetAttempt>();
  world.settle();
  EXPECT_EQ(world.logs.size(), 1u);
  EXPECT_EQ(world.last(1).error_reason(), "NOT_PREPARED");
}

TEST(CommandsTest, BeatsCarryBeaconStatus) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  BeaconsRead seen;
  BeaconsRead::Item& item = seen.items.emplace_back();
  item.key = {"u1", 1};
  item.status.set_step(7);
  item.status.set_phase("forward");
  item.status.set_counter(99);
  item.phase_since = world.now().monotonic;
  seen.items.push_back(item);
  seen.items.back().key = {"u9", 1};  // An unknown attempt.
  world.feed(seen);
  world.move_clock(absl::Milliseconds(1500) + absl::Nanoseconds(999'999));  // Fractions of a millisecond are truncated.
  const v1::Register hello = world.core().make_register(world.now());
  ASSERT_EQ(hello.inventory_size(), 1);
  EXPECT_EQ(hello.inventory(0).phase(), Report::STARTED);
  EXPECT_EQ(hello.inventory(0).devices(), 1);
  EXPECT_EQ(hello.inventory(0).job(), "name");
  const v1::RankStatus& rank = hello.inventory(0).ranks(0);
  EXPECT_EQ(rank.step(), 7);
  EXPECT_EQ(rank.counter(), 99);
  EXPECT_EQ(rank.phase_milliseconds(), 1500);
  EXPECT_GT(rank.pid(), 0);
}

}  // namespace
}  // namespace titan::node
