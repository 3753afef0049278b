// No command to a node may take forever, a node that fails jobs is not chosen again, and decisions about a job survive
// the controller.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class DeadlinesTest : public World, public ::testing::Test {
 protected:
  std::vector<std::string> nodes_of(const std::string& id) {
    std::vector<std::string> names;
    for (const job::Placement& placement : job(id)->attempts.back()->placements) names.push_back(placement.node);
    return names;
  }
  // Trains "a" on n1 and n2, makes n1 ignore all commands, and ends the attempt by a failure on n2.
  void fail_with_a_hung_node(int num_nodes) {
    for (int i = 1; i <= num_nodes; ++i) add_node(absl::StrCat("n", i));
    ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
    train("a", 1);
    hung = {"n1"};
    exit_rank(nodes.at("n2"), key("a"), 1, 1, 0);
    settle();
    ASSERT_EQ(state("a"), "RECOVERING");
  }
};

TEST_F(DeadlinesTest, HungPrepareEndsAndRetriesElsewhere) {
  add_node("n1");
  hung = {"n1"};
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  EXPECT_EQ(state("a"), "RESERVING");
  add_node("n2");
  advance(absl::Seconds(77));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "LAUNCH_FAILED");
  EXPECT_THAT(job("a")->attempts[0]->end_message, HasSubstr("did not prepare in time"));
  EXPECT_EQ(nodes_of("a"), std::vector<std::string>{"n2"});
  EXPECT_EQ(count_events("a", "PrepareTimedOut"), 1);
  EXPECT_EQ(reconciler->node("n1")->devices_used, 1) << "used until the node reports otherwise";
}

TEST_F(DeadlinesTest, UnkillableRankHoldsOnlyItsDevices) {
  ASSERT_NO_FATAL_FAILURE(fail_with_a_hung_node(3));
  const FakeNode::Key old = key("a");
  FakeNode& first = nodes.at("n1");
  advance(absl::Seconds(31));
  EXPECT_EQ(count_events("a", "StopTimedOut"), 1);
  EXPECT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "RANK_FAILED") << "the first cause, not the late stop";
  EXPECT_THAT(nodes_of("a"), Not(Contains("n1")));
  EXPECT_EQ(reconciler->node("n1")->devices_used, 1);
  hung.clear();
  exit_rank(first, old, 0, -1, 9, "ATTEMPT_FAILED");
  advance(absl::Seconds(1));
  EXPECT_EQ(reconciler->node("n1")->devices_used, 0);
}

// The node itself reports that it cannot end a rank, so the controller does not wait for its own deadline.
TEST_F(DeadlinesTest, NodeReportsRanksThatCannotBeEnded) {
  ASSERT_NO_FATAL_FAILURE(fail_with_a_hung_node(4));
  const FakeNode::Key old = key("a");
  FakeNode& first = nodes.at("n1");
  v1::WorkerMessage sent = report(old, first.attempts.at(old));
  sent.mutable_attempt()->set_error_reason("STOP_TIMEOUT");
  sent.mutable_attempt()->set_error_message("rank 0 is in state D");
  deliver(first, sent);
  deliver(first, sent);
  settle();
  EXPECT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "RANK_FAILED") << "the first cause";
  EXPECT_THAT(nodes_of("a"), Not(Contains("n1")));
  EXPECT_EQ(count_events("a", "RankUnkillable"), 1);
  EXPECT_EQ(reconciler->node("n1")->devices_used, 1) << "used until the node reports otherwise";
  EXPECT_TRUE(reconciler->node("n1")->node.record.cordoned);
  EXPECT_THAT(reconciler->node("n1")->node.record.cordon_reason, HasSubstr("RANK_UNKILLABLE"));
  connect(first);
  EXPECT_EQ(reconciler->node("n1")->devices_used, 1) << "also after a new session";
  hung.clear();
  exit_rank(first, old, 0, -1, 9, "ATTEMPT_FAILED");
  settle();
  EXPECT_EQ(reconciler->node("n1")->devices_used, 0);
  EXPECT_EQ(first.attempts.count(old), 0u) << "forgotten like every ended attempt";
}

TEST_F(DeadlinesTest, CancelEndsDespiteAHungNode) {
  add_node("n1");
  hung = {"n1"};
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_EQ(state("a"), "STOPPING");
  advance(absl::Seconds(31));
  EXPECT_EQ(state("a"), "CANCELLED");
}

// Each new session gets the stop again, without a new deadline.
TEST_F(DeadlinesTest, RepeatedStopsDoNotExtendTheDeadline) {
  FakeNode& node = add_node("n1");
  add_node("n2");
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  train("a", 1);
  hung = {"n1"};
  ASSERT_TRUE(cancel("a").ok());
  const int64_t deadline = job("a")->record->intent.deadline_ns;
  EXPECT_EQ(deadline, absl::ToUnixNanos(clock.now() + absl::Seconds(60))) << "30 s to save, 30 s to be killed";
  for (int i = 0; i < 29; ++i) {
    advance(absl::Seconds(2));
    disconnect(node);
    connect(node);
    ASSERT_TRUE(cancel("a").ok());
  }
  EXPECT_EQ(state("a"), "STOPPING");
  EXPECT_EQ(job("a")->record->intent.deadline_ns, deadline);
  advance(absl::Seconds(3));
  EXPECT_EQ(state("a"), "CANCELLED");
  std::vector<v1::Stop> stops;
  for (const v1::ControllerMessage& message : node.received) {
    if (message.has_stop() && message.stop().reason() == "CANCELLED") stops.push_back(message.stop());
  }
  ASSERT_GT(stops.size(), 30u);
  EXPECT_EQ(stops[0].grace_milliseconds(), 30'000);
  EXPECT_EQ(stops[0].deadline_milliseconds(), 40'000) << "the node is the first to report what does not end";
  EXPECT_LT(stops[20].grace_milliseconds(), 30'000) << "the rest of the grace period";
  for (const v1::Stop& stop : stops) EXPECT_GT(stop.deadline_milliseconds(), 0);
}

// A node that was cut off returns with an attempt that has been replaced, and cannot end it. It gets one stop, not one
// per report.
TEST_F(DeadlinesTest, NodeThatCannotEndAnAttemptGetsOneStop) {
  for (const char* node : {"n1", "n2"}) add_node(node);
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  train("a", 1);
  const FakeNode::Key old = key("a");
  const std::string first = nodes_of("a")[0];
  FakeNode& node = nodes.at(first);
  disconnect(node);
  advance(absl::Seconds(70));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  hung = {first};
  connect(node);
  EXPECT_EQ(node.count(v1::ControllerMessage::kStop), 1);
  for (int i = 0; i < 10; ++i) {
    v1::WorkerMessage overdue = report(old, node.attempts.at(old));
    overdue.mutable_attempt()->set_error_reason("STOP_TIMEOUT");
    deliver(node, overdue);
    settle();
  }
  EXPECT_EQ(node.count(v1::ControllerMessage::kStop), 1);
  EXPECT_EQ(reconciler->node(first)->devices_used, 1);
}

// A stop that begins with the first report after a pause of the controller, before a tick has noticed the pause, is not
// extended by the pause.
TEST_F(DeadlinesTest, StopThatBeginsAfterAPauseIsNotExtended) {
  for (const char* name : {"n1", "n2", "n3"}) add_node(name);
  ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
  train("a", 1);
  hung = {"n1"};
  clock.advance(absl::Seconds(300));
  exit_rank(nodes.at("n2"), key("a"), 1, 1, 0);
  settle();
  ASSERT_EQ(state("a"), "RECOVERING");
  advance(absl::Seconds(31));
  EXPECT_EQ(job("a")->attempts.size(), 2u);
}

TEST_F(DeadlinesTest, StopDeadlineSurvivesTheController) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  train("a", 1);
  hung = {"n1"};
  ASSERT_TRUE(cancel("a").ok());
  advance(absl::Seconds(15));
  crash();
  connect_all();
  advance(absl::Seconds(44));
  EXPECT_EQ(state("a"), "STOPPING");
  advance(absl::Seconds(2));
  EXPECT_EQ(state("a"), "CANCELLED");
}

// A wall clock that was set forward still leaves a node the time to get the command, save a little and be killed; one
// that was set back gives no more than a stop has.
TEST_F(DeadlinesTest, WrongWallClockShiftsAStopOnlySlightly) {
  for (const absl::Duration error : {absl::Hours(1), -absl::Hours(1)}) {
    World world;
    world.add_node("n1");
    ASSERT_TRUE(world.submit(world.spec("a", 1, 1)).ok());
    world.train("a", 1);
    world.hung = {"n1"};
    ASSERT_TRUE(world.cancel("a").ok());
    // Moves the stored deadline instead of the clock.
    std::vector<store::Record> records = world.copy_store();
    for (store::Record& record : records) {
      if (record.key != job_key(world.job("a")->record->uid)) continue;
      job::JobRecord moved = *job::decode<job::JobRecord>(record.value);
      moved.intent.deadline_ns -= absl::ToInt64Nanoseconds(error);
      record.value = job::encode(moved);
    }
    world.crash_to(records);
    world.connect_all();
    world.advance(absl::Seconds(error > absl::ZeroDuration() ? 39 : 59));
    EXPECT_EQ(world.state("a"), "STOPPING") << error;
    world.advance(absl::Seconds(2));
    EXPECT_EQ(world.state("a"), "CANCELLED") << error;
  }
}

// Nodes give up before the controller does, and report why.
TEST_F(DeadlinesTest, CommandsCarryTheirRemainingTime) {
  FakeNode& node = add_node("n1");
  hung = {"n1"};
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  const auto last = [&] { return node.received.back(); };
  ASSERT_TRUE(last().has_prepare());
  EXPECT_EQ(last().prepare().deadline_milliseconds(), 60'000);
  advance(absl::Seconds(20));
  connect(node);
  ASSERT_TRUE(last().has_prepare());
  EXPECT_EQ(last().prepare().deadline_milliseconds(), 40'000);
  ASSERT_TRUE(cancel("a").ok());
  ASSERT_TRUE(last().has_stop());
  EXPECT_EQ(last().stop().grace_milliseconds(), 0);
  EXPECT_EQ(last().stop().deadline_milliseconds(), 10'000);
}

// The request may be lost with the session: the drain must not wait forever, and the job must not be killed.
TEST_F(DeadlinesTest, DrainIsRepeatedInTheNextSession) {
  FakeNode& node = add_node("n1");
  add_node("n2");
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  train("a", 1);
  hung = {"n1"};
  reconciler->drain("n1", "maintenance", [](const auto&) {});
  settle();
  hung.clear();
  disconnect(node);
  advance(absl::Seconds(2));
  connect(node);
  advance(absl::Seconds(1));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "STOPPED");
  EXPECT_THAT(nodes_of("a"), Not(Contains("n1")));
}

TEST_F(DeadlinesTest, RefusingNodeIsNotChosenAgain) {
  for (int i = 1; i <= 4; ++i) add_node(absl::StrCat("n", i));
  refuses = {"n1"};
  refusal = "LAUNCH_FAILED";
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  advance(absl::Seconds(3));
  EXPECT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_THAT(nodes_of("a"), Not(Contains("n1")));
  EXPECT_FALSE(reconciler->node("n1")->node.record.cordoned) << "one job may be the cause itself";
  ASSERT_TRUE(submit(spec("b", 1, 1)).ok());
  advance(absl::Seconds(3));
  EXPECT_TRUE(reconciler->node("n1")->node.record.cordoned);
  EXPECT_THAT(reconciler->node("n1")->node.record.cordon_reason, HasSubstr("failed 2 jobs within a day"));
  EXPECT_EQ(job("b")->attempts.size(), 2u);
}

// Another process has the devices, although the controller counts them as free: this is not a failure of the job, and
// other nodes are idle.
TEST_F(DeadlinesTest, NodeWithoutFreeDevicesIsLeftForAnother) {
  for (const char* reason : {"DEVICE_TAKEN", "NO_DEVICES"}) {
    World world;
    world.add_node("n1");
    world.refuses = {"n1"};
    world.refusal = reason;
    world.add_node("n2");
    ASSERT_TRUE(world.submit(world.spec("a", 1, 1)).ok());
    ASSERT_EQ(world.job("a")->attempts.size(), 2u) << reason;
    EXPECT_EQ(world.job("a")->attempts[1]->placements[0].node, "n2");
    EXPECT_TRUE(world.reconciler->node("n1")->node.record.blames.empty());
    EXPECT_EQ(store::scan_all(world.store, "refusal/")->size(), 0u) << "it was recorded and ended in one transaction";
  }
}

TEST_F(DeadlinesTest, JobWaitsForTakenDevices) {
  add_node("n1");
  refuses = {"n1"};
  refusal = "DEVICE_TAKEN";
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  advance(absl::Minutes(10));
  EXPECT_EQ(state("a"), "RECOVERING");
  EXPECT_LT(job("a")->attempts.size(), 25u) << "its attempts become less frequent";
  refuses.clear();
  advance(absl::Minutes(2));
  EXPECT_EQ(state("a"), "STARTING");
}

// The shim cannot be killed: neither the worker nor the controller gives its devices to another attempt.
TEST_F(DeadlinesTest, RefusedAttemptHoldsItsDevicesUntilItEnds) {
  FakeNode& node = add_node("n1");
  add_node("n2");
  ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
  train("a", 1);
  const FakeNode::Key old = key("a");
  FakeNode::Attempt& refused = node.attempts.at(old);
  refused.phase = v1::AttemptReport::REFUSED;
  v1::WorkerMessage sent = report(old, refused);
  sent.mutable_attempt()->set_error_reason("STATE_FOLDER_UNUSABLE");
  sent.mutable_attempt()->set_holds_devices(true);
  hung = {"n1"};
  const FakeNode::Attempt kept = refused;
  const auto keep_it = [&] {
    node.attempts[old] = kept;
  };  // The node keeps the attempt although it was ordered to forget it.
  deliver(node, sent);
  settle();
  keep_it();
  ASSERT_EQ(state("a"), "RECOVERING");
  EXPECT_EQ(reconciler->node("n1")->devices_used, 1);
  deliver(node, sent);
  connect(node);
  deliver(node, sent);
  EXPECT_EQ(reconciler->node("n1")->devices_used, 1) << "as its inventory and its report say";
  keep_it();
  crash();
  connect_all();
  deliver(node, sent);
  EXPECT_EQ(reconciler->node("n1")->devices_used, 1) << "also for the next controller";
  const int stops = node.count(v1::ControllerMessage::kStop);
  sent.mutable_attempt()->set_holds_devices(false);
  hung.clear();
  deliver(node, sent);
  settle();
  EXPECT_EQ(reconciler->node("n1")->devices_used, 0);
  EXPECT_EQ(node.count(v1::ControllerMessage::kStop), stops) << "nothing is left to be stopped";
  EXPECT_EQ(node.attempts.count(old), 0u);
}

TEST_F(DeadlinesTest, ASmallClusterKeepsItsNodes) {
  add_node("n1");
  refuses = {"n1"};
  refusal = "LAUNCH_FAILED";
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(submit(spec(id, 1, 1)).ok());
    advance(absl::Seconds(30));
  }
  EXPECT_FALSE(reconciler->node("n1")->node.record.cordoned);
}

// The other ranks of a job load or save a checkpoint and report nothing meanwhile: the attempt is not lost together
// with the node that is silent.
TEST_F(DeadlinesTest, QuietPhaseIsNotALoss) {
  add_node("n1");
  add_node("n2");
  ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
  train("a", 1);
  advance(absl::Seconds(1));
  for (auto& [name, node] : nodes) node.attempts.at(key("a")).rank_phase = "checkpoint";
  advance(absl::Seconds(1));
  silent = {"n2"};
  advance(absl::Seconds(20));
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  silent.clear();
  advance(absl::Seconds(2));
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

TEST_F(DeadlinesTest, BackoffAndReservationsSurviveTheController) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  for (int i = 0; i < 2; ++i) finish_all("a", 1);
  ASSERT_EQ(job("a")->pending_reason, "BACKOFF");
  const size_t attempts = job("a")->attempts.size();
  crash();
  EXPECT_EQ(job("a")->record->reserved.at("n1"), 1);
  connect_all();
  ASSERT_TRUE(submit(spec("b", 1, 1)).ok());
  EXPECT_EQ(state("b"), "QUEUED") << "the device is reserved for the recovering job";
  EXPECT_EQ(job("a")->attempts.size(), attempts) << "its backoff continues";
  advance(absl::Seconds(2));
  EXPECT_EQ(job("a")->attempts.size(), attempts + 1);
}

TEST_F(DeadlinesTest, ACancelWithoutSavingSurvivesTheController) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  train("a", 1);
  stops_at_once = false;
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  crash();
  EXPECT_FALSE(job("a")->record->intent.save);
  nodes.at("n1").received.clear();
  connect_all();
  bool stopped = false;
  for (const v1::ControllerMessage& message : nodes.at("n1").received) {
    if (!message.has_stop()) continue;
    stopped = true;
    EXPECT_FALSE(message.stop().save());
  }
  EXPECT_TRUE(stopped);
}

TEST_F(DeadlinesTest, ExitsAreSeparateRecordsUntilTheAttemptEnds) {
  add_node("n1");
  add_node("n2");
  ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
  train("a", 1);
  stops_at_once = false;
  exit_rank(nodes.at("n2"), key("a"), 1, 1, 0);
  settle();
  EXPECT_EQ(store::scan_all(store, "exit/")->size(), 1u);
  crash();
  stops_at_once = true;
  connect_all();
  advance(absl::Seconds(1));
  ASSERT_GE(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "RANK_FAILED") << "known although its node reported it only once";
  EXPECT_EQ(store::scan_all(store, "exit/")->size(), 0u);
}

// Any node may lie or be wrong: it may report only its own ranks.
TEST_F(DeadlinesTest, NodeMayReportOnlyItsOwnRanks) {
  add_node("n1");
  FakeNode& second = add_node("n2");
  ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
  train("a", 1);
  FakeNode::Attempt lie = second.attempts.at(key("a"));
  lie.exits.emplace_back().set_rank(0);
  lie.exits.back().set_exit_code(1);
  deliver(second, report(key("a"), lie));
  settle();
  EXPECT_EQ(state("a"), "RUNNING");
  send_events(second, key("a"), 0, 99, R"({"kind":"step","step":500,"metrics":{}})");
  settle();
  EXPECT_EQ(job("a")->progress.step, 1);
}

TEST_F(DeadlinesTest, CancelOfAnEndingJobLeavesNoRecord) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  train("a", 1);
  bool answered = false;
  reconciler->cancel(job("a")->record->uid, false, [&](const auto&) { answered = true; });
  for (const int rank : std::vector<int>{0})
    exit_rank(nodes.at("n1"), key("a"), rank, 0, 0);  // The attempt ends meanwhile.
  settle();
  EXPECT_TRUE(answered);
  EXPECT_EQ(state("a"), "SUCCEEDED");
  EXPECT_EQ(store::scan_all(store, "cancel/")->size(), 0u);
}

// A controller that starts on a full disk must still welcome its nodes, or their ranks end as orphans.
TEST_F(DeadlinesTest, FullDiskDoesNotBlockRegistration) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  train("a", 1);
  crash();
  store.set_full(true);
  nodes.at("n1").received.clear();
  connect_all();
  EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kWelcome), 1);
  advance(absl::Seconds(10));
  EXPECT_EQ(state("a"), "RUNNING");
  store.set_full(false);
  advance(absl::Seconds(1));
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

// If a node returns without an attempt that was never started there, nothing is lost and the node is not to blame.
TEST_F(DeadlinesTest, AttemptThatNeverStartedIsNotALoss) {
  add_node("n1");
  hung = {"n1"};
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  ASSERT_EQ(state("a"), "RESERVING");
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_EQ(state("a"), "STOPPING");
  FakeNode& node = nodes.at("n1");
  disconnect(node);
  node.attempts.clear();
  connect(node);
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_TRUE(reconciler->node("n1")->node.record.blames.empty());
  EXPECT_EQ(reconciler->node("n1")->devices_used, 0);
}

// Another job that runs forever must not keep a job from the only free node.
TEST_F(DeadlinesTest, AvoidanceOfANodeExpires) {
  add_node("n2");
  ASSERT_TRUE(submit(spec("b", 1, 1)).ok());
  loaded("b", 0);
  add_node("n1");
  refuses = {"n1"};
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  ASSERT_EQ(state("a"), "RECOVERING");
  refuses.clear();
  advance(absl::Seconds(30));
  EXPECT_EQ(state("a"), "RECOVERING") << "n2 could hold it";
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  advance(absl::Seconds(40));
  EXPECT_EQ(nodes_of("a"), std::vector<std::string>{"n1"});
  EXPECT_EQ(count_events("a", "AvoidanceGivenUp"), 1);
}

// A restored store has no record of an attempt that a node prepares: its devices count as used, and its number is not
// reused.
TEST_F(DeadlinesTest, UnknownPreparingAttemptHoldsItsDevices) {
  add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 2, 2)).ok());
  FakeNode& node = nodes.at("n1");
  const FakeNode::Key old = key("a");
  crash();
  FakeNode::Attempt preparing;
  preparing.phase = v1::AttemptReport::PREPARING;
  preparing.ranks = {0, 1};
  preparing.devices = {0, 1};
  node.attempts = {{{old.first, old.second + 4}, preparing}};
  hung = {"n1"};
  connect(node);
  EXPECT_EQ(count_events("a", "AttemptNumberRaised"), 1);
  EXPECT_EQ(reconciler->node("n1")->devices_used, 2);
}

}  // namespace
}  // namespace titan::reconcile
