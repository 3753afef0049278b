// The core survives the failure or hang of every effect that can fail or hang.

#include <algorithm>

#include "common/rank_protocol/launch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/core/node_world.h"

namespace titan::node {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using Report = v1::AttemptReport;
using Phase = AttemptRecord::Phase;

TEST(FaultsTest, FullDiskRefusesAndLeavesNothing) {
  NodeWorld world;
  world.connect();
  world.fail<RaiseFence>("no space");
  world.prepare(1);
  world.settle();
  EXPECT_EQ(world.last(1).error_reason(), "STATE_FOLDER_UNUSABLE");
  EXPECT_EQ(world.last(1).error_message(), "no space");
  world.clear_failure<RaiseFence>();
  world.fail<AddRecord>("no space");
  world.prepare(2);
  world.settle();
  EXPECT_EQ(world.last(2).error_reason(), "STATE_FOLDER_UNUSABLE");
  EXPECT_EQ(world.count<DeleteFolder>(), 1) << "the incomplete folder is deleted";
  world.clear_failure<AddRecord>();
  // Without the record of a live attempt, a restarted daemon would not know what was promised.
  world.fail<WriteRecord>("no space");
  world.prepare(3);
  world.settle();
  EXPECT_EQ(world.last(3).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(3).error_reason(), "STATE_FOLDER_UNUSABLE");
  EXPECT_FALSE(world.shim(3).alive);
  EXPECT_EQ(world.core().free_devices().size(), 4u);
  world.clear_failure<WriteRecord>();
  world.prepare(4);
  world.settle();
  EXPECT_EQ(world.last(4).phase(), Report::PREPARED);
}

// The controller learns that this node is unusable before it gets the refusal, which is then not a failure of the job.
TEST(FaultsTest, FailedWriteIsReportedBeforeTheRefusal) {
  NodeWorld world;
  world.connect();
  const auto check = [&](int attempt, const std::string& why) {
    ASSERT_EQ(world.last(attempt).error_reason(), "STATE_FOLDER_UNUSABLE");
    const auto& messages = world.messages();
    const auto refusal = std::find_if(messages.begin(), messages.end(), [&](const v1::WorkerMessage& message) {
      return message.has_attempt() && message.attempt().id().number() == attempt;
    });
    const auto beat = std::find_if(messages.begin(), messages.end(), [&](const v1::WorkerMessage& message) {
      return message.has_beat() && message.beat().unusable() == why;
    });
    ASSERT_NE(beat, messages.end());
    EXPECT_LT(beat, refusal);
    EXPECT_EQ(world.core().make_register(world.now()).unusable(), why);
    world.feed(StateFolderChecked{""});
    EXPECT_EQ(world.core().make_register(world.now()).unusable(), "");
  };
  world.fail<RaiseFence>("no space for a fence");
  world.prepare(1);
  world.settle();
  check(1, "no space for a fence");
  world.clear_failure<RaiseFence>();
  world.fail<AddRecord>("no space for a record");
  world.prepare(2);
  world.settle();
  check(2, "no space for a record");
}

// A fence of one job that cannot be read, or that was damaged and repaired, does not make the node unusable.
TEST(FaultsTest, BadFenceOfOneJobDoesNotAffectTheNode) {
  NodeWorld world;
  world.connect();
  world.hang<RaiseFence>();
  world.prepare(1);
  world.settle();
  const auto fence_op = [&world] {
    const auto is_fence = [](const auto& item) { return item.second.kind == Pending::Kind::kFence; };
    const auto& pending = world.core().state().pending;
    return std::find_if(pending.begin(), pending.end(), is_fence)->first;
  };
  world.feed(FenceRaised{.op = fence_op(), .error = "fence cannot be read", .is_unreadable = true});
  world.settle();
  EXPECT_EQ(world.last(1).phase(), v1::AttemptReport::REFUSED);
  EXPECT_EQ(world.last(1).error_reason(), "FENCE_UNREADABLE");
  EXPECT_EQ(world.core().make_register(world.now()).unusable(), "");
  world.prepare(2);
  world.settle();
  world.feed(FenceRaised{.op = fence_op(), .highest = 2, .damage = "fence was damaged"});
  EXPECT_EQ(world.core().make_register(world.now()).unusable(), "");
  EXPECT_THAT(world.log, Contains(HasSubstr("FenceDamaged")));
  world.release<RaiseFence>();
  world.settle();
  EXPECT_EQ(world.last(2).phase(), v1::AttemptReport::PREPARED);
}

// Running attempts continue, and the next beat reports at once that the state folder is unusable.
TEST(FaultsTest, NextBeatReportsAnUnusableStateFolder) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  const size_t before = world.messages().size();
  world.feed(StateFolderChecked{"/state was deleted"});
  EXPECT_EQ(world.core().next_deadline(), world.now().monotonic);
  world.tick();
  world.settle();
  ASSERT_GT(world.messages().size(), before);
  const v1::WorkerMessage& last = world.messages().back();
  ASSERT_TRUE(last.has_beat());
  EXPECT_EQ(last.beat().unusable(), "/state was deleted");
  EXPECT_EQ(last.beat().attempts_size(), 1);
  EXPECT_EQ(last.beat().unix_nanoseconds(), world.now().wall_ns());
  EXPECT_EQ(world.core().running_ranks(), 2);
  world.feed(StateFolderChecked{""});
  world.tick();
  world.settle();
  EXPECT_EQ(world.messages().back().beat().unusable(), "");
}

// The exits are in the run folder, so the end is reported on a full disk too. Its record is written once there is
// space.
TEST(FaultsTest, FullDiskDoesNotHideTheEnd) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.fail<WriteRecord>("no space");
  world.stop(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.disk.records.at({"u1", 1}).phase, Phase::kLive);
  world.clear_failure<WriteRecord>();
  world.advance(absl::Seconds(2));
  EXPECT_EQ(world.disk.records.at({"u1", 1}).phase, Phase::kEnded);
}

TEST(FaultsTest, HangingStateFolderDelaysTheEndOnlyUntilTimeout) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.hang<WriteRecord>();
  world.stop(1);
  world.advance(kWriteTimeout - absl::Seconds(1));
  EXPECT_NE(world.last(1).phase(), Report::ENDED);
  world.advance(absl::Seconds(2));
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  world.release<WriteRecord>();
  world.advance(absl::Seconds(3));
  EXPECT_EQ(world.disk.records.at({"u1", 1}).phase, Phase::kEnded);
  EXPECT_EQ(world.last(1).exits_size(), 2);
}

// A Forget that could not be written is requested again after the next start.
TEST(FaultsTest, UnwrittenForgetIsRepeatedAfterARestart) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.stop(1);
  world.settle();
  world.fail<ForgetAttempt>("no space");
  world.forget(1);
  world.settle();
  EXPECT_TRUE(world.core().state().attempts.empty());
  world.clear_failure<ForgetAttempt>();
  world.restart();
  world.connect();
  ASSERT_EQ(world.registered().inventory_size(), 1);
  EXPECT_EQ(world.registered().inventory(0).phase(), Report::ENDED);
  world.forget(1);
  world.settle();
  EXPECT_EQ(world.disk.records.at({"u1", 1}).phase, Phase::kForgotten);
}

TEST(FaultsTest, ShimThatCannotStartIsALaunchFailure) {
  NodeWorld world;
  world.connect();
  world.fail<SpawnShim>("no such program");
  world.prepare(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(1).error_reason(), "LAUNCH_FAILED");
  EXPECT_EQ(world.last(1).error_message(), "no such program");
  EXPECT_EQ(world.core().free_devices().size(), 4u);
  world.advance(kPrepareTimeout * 2);
  EXPECT_EQ(world.reports().size(), 1u);
}

TEST(FaultsTest, ShimThatDiesSilentlyIsALaunchFailure) {
  NodeWorld world;
  world.connect();
  world.new_shims_hang = true;
  world.prepare(1);
  world.settle();
  EXPECT_TRUE(world.reports().empty());
  world.kill_shim(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(1).error_reason(), "LAUNCH_FAILED");
  EXPECT_THAT(world.last(1).error_message(), HasSubstr("titan-shim did not start"));
}

// The controller must not give a refused attempt's devices to others before its last process is gone.
TEST(FaultsTest, RefusalReportsWhetherDevicesAreStillHeld) {
  NodeWorld world;
  world.connect();
  world.new_shims_hang = true;
  world.prepare(1);
  world.advance(kPrepareTimeout);
  ASSERT_EQ(world.last(1).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(1).error_reason(), "PREPARE_TIMEOUT");
  EXPECT_TRUE(world.last(1).holds_devices());
  EXPECT_LT(world.core().free_devices().size(), 4u);
  world.kill_shim(1);
  world.advance(absl::Seconds(3));
  EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
  EXPECT_FALSE(world.last(1).holds_devices());
  EXPECT_EQ(world.core().free_devices().size(), 4u);
}

TEST(FaultsTest, RanksThatCannotStartAreALaunchFailure) {
  NodeWorld world;
  world.connect();
  world.fail<SendToShim>("no such rank program");
  world.launch(1);
  EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(1).error_reason(), "LAUNCH_FAILED");
  EXPECT_EQ(world.core().free_devices().size(), 4u);
}

// The storage of a dump folder does not answer: the refusal comes in time, and late results are undone.
TEST(FaultsTest, HangingPreparationTimesOut) {
  for (const int64_t deadline : {int64_t{0}, int64_t{7'000}}) {
    NodeWorld world;
    world.connect();
    world.hang<PrepareFolder>();
    world.prepare(1, 2, true, deadline);
    const absl::Duration timeout = deadline > 0 ? absl::Milliseconds(deadline) : kPrepareTimeout;
    world.advance(timeout - absl::Milliseconds(1));
    EXPECT_TRUE(world.reports().empty());
    world.advance(absl::Milliseconds(2));
    EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
    EXPECT_EQ(world.last(1).error_reason(), "PREPARE_TIMEOUT");
    EXPECT_THAT(world.last(1).error_message(), HasSubstr("the storage of the dump folder /dump does not answer"));
    EXPECT_EQ(world.core().free_devices().size(), 4u);
    // Another try of the same attempt does not accumulate waiting threads.
    world.forget(1);
    world.settle();
    world.prepare(1);
    world.settle();
    EXPECT_EQ(world.last(1).error_reason(), "PREPARE_TIMEOUT");
    EXPECT_EQ(world.count<PrepareFolder>(), 1);
    world.release<PrepareFolder>();
    world.settle();
    EXPECT_TRUE(world.disk.tokens.empty()) << "a later attempt's check must not find it";
    EXPECT_EQ(world.count<SpawnShim>(), 0);
    world.prepare(2);
    world.settle();
    EXPECT_EQ(world.last(2).phase(), Report::PREPARED) << "another attempt";
  }
}

TEST(FaultsTest, NumberOfHangingPreparationsIsLimited) {
  NodeWorld world;
  world.connect();
  world.hang<PrepareFolder>();
  int attempt = 0;
  for (size_t i = 0; i < kMaxLatePreparations; ++i) {
    world.prepare(++attempt, 1, true, 1'000);
    world.advance(absl::Seconds(2));
    EXPECT_EQ(world.last(attempt).error_reason(), "PREPARE_TIMEOUT");
  }
  world.prepare(++attempt, 1, true, 1'000);
  world.settle();
  EXPECT_EQ(world.last(attempt).error_reason(), "PREPARE_TIMEOUT") << "at once";
  EXPECT_EQ(world.count<PrepareFolder>(), static_cast<int>(kMaxLatePreparations));
  world.release<PrepareFolder>();
  world.settle();
  world.prepare(++attempt, 1);
  world.settle();
  EXPECT_EQ(world.last(attempt).phase(), Report::PREPARED);
}

TEST(FaultsTest, EveryStageOfAPreparationTimesOut) {
  const std::vector<std::pair<std::function<void(NodeWorld&)>, std::string>> stages = {
      {[](NodeWorld& world) { world.hang<RaiseFence>(); }, "the state folder does not answer"},
      {[](NodeWorld& world) { world.hang<AddRecord>(); }, "the state folder does not answer"},
      {[](NodeWorld& world) { world.hang<SpawnShim>(); }, "titan-shim does not answer"},
      {[](NodeWorld& world) { world.new_shims_hang = true; }, "titan-shim does not answer"},
      {[](NodeWorld& world) { world.hang<WriteRecord>(); }, "the state folder does not answer"},
  };
  for (const auto& [hang, why] : stages) {
    NodeWorld world;
    world.connect();
    hang(world);
    world.prepare(1);
    world.advance(kPrepareTimeout + kWriteTimeout + absl::Seconds(1));
    EXPECT_EQ(world.last(1).phase(), Report::REFUSED) << why;
    EXPECT_EQ(world.last(1).error_reason(), "PREPARE_TIMEOUT");
    EXPECT_THAT(world.last(1).error_message(), HasSubstr(why));
    // Once storage answers, nothing of the attempt remains.
    world.release<RaiseFence>();
    world.release<AddRecord>();
    world.release<SpawnShim>();
    world.release<WriteRecord>();
    world.advance(absl::Seconds(20));
    EXPECT_EQ(world.core().free_devices().size(), 4u) << why;
    for (const auto& [key, shim] : world.shims) EXPECT_FALSE(shim.alive) << why;
    world.forget(1);
    world.settle();
    EXPECT_TRUE(world.core().state().attempts.empty()) << why;
    for (const auto& [key, record] : world.disk.records) EXPECT_EQ(record.phase, Phase::kForgotten) << why;
  }
}

TEST(FaultsTest, UnansweredTokenCheckTimesOut) {
  NodeWorld world;
  world.connect();
  world.hang<CheckToken>();
  world.launch(1);
  world.advance(NodeWorld::default_config().token_timeout + kStartTimeout + absl::Seconds(1));
  EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
  EXPECT_EQ(world.last(1).error_reason(), "DUMP_FOLDER_UNUSABLE");
  EXPECT_EQ(world.running_ranks(1), 0);
  world.release<CheckToken>();
  world.settle();
  EXPECT_EQ(world.running_ranks(1), 0);
  EXPECT_EQ(world.last(1).phase(), Report::REFUSED);
}

// Start reaches the shim over the link that exists when the token is seen, or over the next one.
TEST(FaultsTest, BrokenLinkDuringStartLosesNothing) {
  for (int steps = 0; steps < 8; ++steps) {
    NodeWorld world;
    world.connect();
    world.prepare(1);
    world.settle();
    world.start(1);
    for (int i = 0; i < steps; ++i) world.run_one();
    if (world.shim(1).link != 0) world.feed(ShimClosed{{"u1", 1}, world.shim(1).link});
    world.settle();
    EXPECT_EQ(world.last(1).phase(), Report::STARTED) << steps;
    EXPECT_EQ(world.running_ranks(1), 2);
    EXPECT_EQ(std::count_if(world.shim(1).got.begin(), world.shim(1).got.end(),
                            [](const ShimCommand& it) { return it.kind == ShimCommand::Kind::kStop; }),
              0);
  }
}

// If the state of a shim cannot be read, its end is not proven.
TEST(FaultsTest, ShimWithUnknownStateIsNotEnded) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.unreadable = "shim.json: Input/output error";
  world.kill_shim(1);
  world.advance(absl::Seconds(30));
  EXPECT_EQ(world.last(1).phase(), Report::STARTED);
  EXPECT_EQ(world.core().free_devices().size(), 2u);
  EXPECT_EQ(std::count_if(world.log.begin(), world.log.end(),
                          [](const std::string& line) {
                            return line.find("cannot determine whether its shim lives") != std::string::npos;
                          }),
            1)
      << "reported once";
  world.unreadable.clear();
  world.advance(absl::Seconds(2));
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "SHIM_LOST");
}

TEST(FaultsTest, LostShimReportIncludesRecordedExits) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.rank_exits(1, 0, 3);
  world.settle();
  world.kill_shim(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "SHIM_LOST");
  ASSERT_EQ(world.last(1).exits_size(), 2);
  EXPECT_EQ(world.last(1).exits(0).exit_code(), 3) << "the recorded exit is kept";
  EXPECT_EQ(world.last(1).exits(1).signal(), 9);
  EXPECT_EQ(world.core().state().shims_lost, 1);
}

// The metrics page shows an attempt's count while the attempt is known, and the node's count forever.
TEST(FaultsTest, RanksThatRanOutOfMemoryAreCounted) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.rank_exits(1, 0, rank_protocol::kExitOutOfMemory);
  world.rank_exits(1, 1, 12);
  world.settle();
  EXPECT_EQ(world.core().memory_kills(), 1);
  EXPECT_EQ(world.core().state().attempts.at(AttemptKey{"u1", 1}).memory_kills(), 1);
  world.forget(1);
  world.settle();
  EXPECT_TRUE(world.core().state().attempts.empty());
  EXPECT_EQ(world.core().memory_kills(), 1);
}

TEST(FaultsTest, TemporarilySilentShimIsNotLost) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  world.hang_shim(1);
  world.advance(absl::Seconds(60));
  EXPECT_EQ(world.last(1).phase(), Report::STARTED);
  EXPECT_EQ(world.count<KillShim>(), 0) << "its ranks train";
  world.wake_shim(1);
  world.settle();
  world.stop(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.last(1).error_reason(), "");
}

// A spool that cannot be read is logged once and read again at each beat, and does not delay the attempt's end.
TEST(FaultsTest, UnreadableEventsAreReadAgain) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.fail<ReadSpool>("Too many open files");
  world.rank_emits(1, 0, 3);
  world.advance(absl::Seconds(5));
  EXPECT_EQ(world.events_of(1, 0), 0);
  EXPECT_EQ(
      std::count_if(world.log.begin(), world.log.end(),
                    [](const std::string& line) { return line.find("Too many open files") != std::string::npos; }),
      1);
  world.clear_failure<ReadSpool>();
  world.advance(kMaxBeatInterval);
  EXPECT_EQ(world.events_of(1, 0), 3);
  world.fail<ReadSpool>("Too many open files");
  world.rank_exits(1, 0, 0);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
}

// Damage of a spool is reported to the job once, and later events are read.
TEST(FaultsTest, SpoolDamageIsReportedAndReadingContinues) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.settle();
  SpoolRead damaged;
  damaged.lines = {{1, R"({"seq":1})", 100}, {4, R"({"seq":4})", 500}, {5, R"({"seq":5})", 600}};
  damaged.damage = {{100, "50 bytes at byte 100 of its event file are not events and were skipped"}};
  damaged.next_offset = 600;
  world.spools[0] = {damaged};
  world.advance(kMaxBeatInterval);
  EXPECT_EQ(world.damage, (std::vector<std::string>{
                              "50 bytes at byte 100 of its event file are not events and were skipped; events 2 to 3 "
                              "are missing"}));
  EXPECT_EQ(world.gaps(), 2) << "events 4 and 5 arrived";
  world.advance(5 * kMaxBeatInterval);
  EXPECT_EQ(world.damage.size(), 1u);
}

// While the number of an event cannot be verified, the damage before it is not reported again.
TEST(FaultsTest, DamageBeforeAnUnverifiedEventIsReportedOnce) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.settle();
  SpoolRead doubtful;
  doubtful.lines = {{7, R"({"seq":7})", 100}};
  doubtful.damage = {{0, "90 bytes"}};
  doubtful.next_offset = 100;
  world.spools[0] = {doubtful, doubtful, doubtful};
  world.advance(3 * kMaxBeatInterval);
  EXPECT_TRUE(world.damage.empty());
  SpoolRead both = doubtful;
  both.lines.push_back({8, R"({"seq":8})", 200});
  both.next_offset = 200;
  world.spools[0] = {both};
  world.advance(kMaxBeatInterval);
  EXPECT_EQ(world.damage, (std::vector<std::string>{"90 bytes; events 1 to 6 are missing"}));
}

TEST(FaultsTest, HangingSpoolsDoNotBlockTheEnd) {
  NodeWorld world;
  world.connect();
  world.launch(1, 2);
  world.hang<ReadSpool>();
  world.rank_emits(1, 0);
  world.settle();
  world.rank_exits(1, 0, 4);
  world.settle();
  EXPECT_EQ(world.last(1).exits_size(), 0) << "its events are reported before its exit";
  world.advance(kSpoolTimeout);
  EXPECT_EQ(world.last(1).exits_size(), 1);
  world.stop(1);
  world.advance(kSpoolTimeout);
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  world.release<ReadSpool>();
  world.settle();
  EXPECT_EQ(world.events_of(1, 0), 1);
}

TEST(FaultsTest, UnwrittenPlacesOnlyRepeatEvents) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.fail<WritePlaces>("no space");
  world.rank_emits(1, 0, 2);
  world.settle();
  world.clear_failure<WritePlaces>();
  world.restart();
  world.connect();
  world.settle();
  EXPECT_EQ(world.events_of(1, 0), 2);
  EXPECT_EQ(world.gaps(), 0);
  EXPECT_EQ(world.disk.places.at({"u1", 1}).at(0).sequence, 2);
}

// Completions that come twice, or belong to no pending effect, do nothing.
TEST(FaultsTest, DuplicateAndUnknownCompletionsAreIgnored) {
  NodeWorld world;
  world.connect();
  world.launch(1);
  NodeCore copy = world.core();
  for (const Op op : {Op{0}, Op{1}, Op{2}, Op{3}, Op{4}, Op{5}, Op{6}, Op{7}, Op{8}, Op{999}}) {
    const std::vector<Input> inputs = {FenceRaised{op, 9, ""},         Written{op, "late"},   FolderPrepared{.op = op},
                                       TokenChecked{op, {"LATE", ""}}, ShimSpawned{op, 1, 1}, ShimLookup{.op = op},
                                       RanksChecked{.op = op},         SpoolRead{.op = op},   LogTailRead{.op = op}};
    for (const Input& input : inputs) EXPECT_TRUE(copy.step(input, world.now()).empty()) << op;
  }
  EXPECT_TRUE(copy.step(ShimClosed{{"u1", 1}, 999}, world.now()).empty());
  EXPECT_TRUE(copy.step(ShimClosed{{"u9", 1}, 1}, world.now()).empty());
  EXPECT_TRUE(copy.step(SpoolChanged{{"u1", 1}, 77}, world.now()).empty());
  EXPECT_EQ(copy.running_ranks(), 2);
}

// A new registration lists attempts in preparation too: their devices are in use.
TEST(FaultsTest, InventoryListsAttemptsInPreparation) {
  NodeWorld world;
  world.connect();
  world.hang<PrepareFolder>();
  world.prepare(1, 2);
  world.settle();
  world.disconnect();
  world.connect();
  ASSERT_EQ(world.registered().inventory_size(), 1);
  const v1::AttemptInventory& item = world.registered().inventory(0);
  EXPECT_EQ(item.id().number(), 1);
  EXPECT_EQ(item.phase(), Report::PREPARING);
  EXPECT_EQ(item.devices(), 2);
  EXPECT_EQ(item.device_indices_size(), 2);
  world.release<PrepareFolder>();
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::PREPARED);
}

}  // namespace
}  // namespace titan::node
