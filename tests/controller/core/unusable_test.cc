// Nodes that report that they are unusable, or whose refusals show it: no job fails because of them.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using State = core::NodeState;

class UnusableTest : public ::testing::Test, protected World {
 protected:
  State node_state(const std::string& node) { return reconciler->node(node)->node.state; }
  std::vector<std::string> node_events(const std::string& node) {
    std::vector<std::string> reasons;
    const auto records = store::scan_all(store, node_events_prefix(node));
    for (const auto& record : *records) reasons.push_back(job::decode<job::EventRecord>(record.value)->reason);
    return reasons;
  }
  void cordon(const std::string& node, const std::string& why = "maintenance") {
    reconciler->cordon(node, true, why, [](const absl::StatusOr<NodeView>&) {});
    settle();
  }
};

TEST_F(UnusableTest, NodeWithAFullDiskRecoversByItself) {
  add_node("n1");
  add_node("n2");
  unusable["n1"] = "the disk of /state is full";
  advance(absl::Seconds(1));
  EXPECT_EQ(node_state("n1"), State::kUnusable);
  EXPECT_EQ(reconciler->node("n1")->node.unusable, "the disk of /state is full");
  for (const char* id : {"a", "b"}) ASSERT_TRUE(submit(spec(id, 1, 1)).ok());
  EXPECT_EQ(job("a")->attempts[0]->placements[0].node, "n2");
  EXPECT_TRUE(job("b")->attempts.empty());
  unusable.clear();
  advance(absl::Seconds(1));
  EXPECT_EQ(node_state("n1"), State::kReady);
  ASSERT_EQ(job("b")->attempts.size(), 1u);
  EXPECT_EQ(job("b")->attempts[0]->placements[0].node, "n1");
  const std::vector<std::string> events = node_events("n1");
  EXPECT_EQ(std::count(events.begin(), events.end(), "NodeUnusable"), 1);
  EXPECT_EQ(std::count(events.begin(), events.end(), "NodeUsable"), 1);
}

TEST_F(UnusableTest, JobShowsWhyNoNodeIsReady) {
  add_node("n1");
  unusable["n1"] = "the disk of /state is full";
  advance(absl::Seconds(1));
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  advance(absl::Seconds(5));
  EXPECT_EQ(job("a")->pending_reason, "NODES_UNUSABLE");
  EXPECT_THAT(job("a")->pending_message, HasSubstr("titanctl node list"));
}

// A node may report in its registration that it is unusable, before anything is placed there.
TEST_F(UnusableTest, RegistrationCanReportAnUnusableNode) {
  unusable["n1"] = "the disk of /state is full";
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  add_node("n1");
  EXPECT_EQ(node_state("n1"), State::kUnusable);
  EXPECT_TRUE(job("a")->attempts.empty());
}

// The node is connected: attempts there are neither hung nor lost, and their events are read.
TEST_F(UnusableTest, RanksOnAnUnusableNodeContinue) {
  add_node("n1");
  add_node("n2");
  ASSERT_TRUE(submit(spec("a")).ok());
  loaded("a", 0);
  train("a", 1);
  unusable["n1"] = unusable["n2"] = "the disk of /state is full";
  for (int step = 2; step < 200; ++step) {
    train("a", step);
    advance(absl::Seconds(1));
  }
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  EXPECT_EQ(job("a")->progress.step, 199);
  // A lost node is still detected.
  disconnect(nodes.at("n1"));
  for (int i = 0; i < 10; ++i) advance(absl::Seconds(1));
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "NODE_LOST");
}

// If the only node left has a full disk, no queued job fails, whatever the worker reports about itself.
TEST_F(UnusableTest, RefusalsBeforeTheStartFailNoJob) {
  for (const char* reason : {"STATE_FOLDER_UNUSABLE", "LAUNCH_FAILED"}) {  // RestartTest has all reasons.
    SCOPED_TRACE(reason);
    World world;
    world.add_node("n5");
    ASSERT_TRUE(world.submit(world.spec("a", 1, 1)).ok());
    world.loaded("a", 0);
    world.train("a", 16);
    world.refuses = {"n5"};
    world.refusal = reason;
    world.exit_rank(world.nodes.at("n5"), world.key("a"), 0, -1, 9);
    for (const char* id : {"b", "c"}) ASSERT_TRUE(world.submit(world.spec(id, 1, 1)).ok());
    world.advance(absl::Minutes(20));
    for (const char* id : {"a", "b", "c"}) {
      EXPECT_FALSE(job::is_final(world.job(id)->record->state)) << id << " " << world.state(id);
      EXPECT_EQ(world.job(id)->record->history.without_progress, id == std::string("a") ? 1 : 0) << id;
      EXPECT_LT(world.job(id)->attempts.size(), 30u) << "its attempts become less frequent";
    }
    world.refuses.clear();
    world.advance(absl::Minutes(20));
    EXPECT_TRUE(world.state("a") == "STARTING" || world.state("a") == "RUNNING" || world.state("b") == "STARTING")
        << world.state("a") << world.state("b");
  }
}

TEST_F(UnusableTest, RefusedJobShowsTheRefusal) {
  add_node("n5");
  refuses = {"n5"};
  refusal = "STATE_FOLDER_UNUSABLE";
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  advance(absl::Seconds(2));
  ASSERT_EQ(state("a"), "RECOVERING");
  EXPECT_EQ(job("a")->pending_reason, "BACKOFF");
  EXPECT_THAT(job("a")->pending_message, HasSubstr("STATE_FOLDER_UNUSABLE: node n5: "));
}

// A defect of the job itself makes every node refuse it: the job fails.
TEST_F(UnusableTest, ALaunchFileThatNoNodeCanReadEndsTheJob) {
  add_node("n5");
  refuses = {"n5"};
  refusal = "BAD_LAUNCH";
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  advance(absl::Minutes(20));
  EXPECT_EQ(state("a"), "FAILED");
}

// Nodes that an operator cordoned do not count towards the limit: they must not keep a faulty node in service.
TEST_F(UnusableTest, OperatorCordonsDoNotCountTowardsTheLimit) {
  for (const char* node : {"n1", "n2", "n3", "n4"}) add_node(node);
  cordon("n1");
  cordon("n2");
  refuses = {"n3"};
  refusal = "LAUNCH_FAILED";
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(submit(spec(id, 1, 1)).ok());
    advance(absl::Seconds(30));
    ASSERT_TRUE(cancel(id, /*now=*/true).ok());
    advance(absl::Seconds(30));
  }
  EXPECT_TRUE(reconciler->node("n3")->node.record.cordoned);
  EXPECT_THAT(reconciler->node("n3")->node.record.cordon_reason, HasSubstr("failed 2 jobs within a day"));
  // Nodes that the controller cordoned do count: one in ten, and at least one.
  refuses = {"n4"};
  for (const char* id : {"c", "d"}) {
    ASSERT_TRUE(submit(spec(id, 1, 1)).ok());
    advance(absl::Seconds(30));
    ASSERT_TRUE(cancel(id, /*now=*/true).ok());
    advance(absl::Seconds(30));
  }
  EXPECT_FALSE(reconciler->node("n4")->node.record.cordoned);
}

// The node takes ranks again by itself; after a cordon an operator would have to uncordon it.
TEST_F(UnusableTest, SelfReportedUnusableNodeIsNotCordoned) {
  for (const char* node : {"n1", "n2", "n3", "n4", "n5"}) add_node(node);
  refuses = {"n1"};
  refusal = "STATE_FOLDER_UNUSABLE";
  reports_unusable = true;
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(submit(spec(id, 1, 1)).ok());
    ASSERT_EQ(job(id)->attempts.size(), 2u) << "it went to n1 first, and elsewhere at once";
    EXPECT_EQ(job(id)->attempts[0]->placements[0].node, "n1");
    EXPECT_EQ(node_state("n1"), State::kUnusable);
    unusable.clear();
    advance(absl::Seconds(1));
    EXPECT_EQ(node_state("n1"), State::kReady);
  }
  EXPECT_FALSE(reconciler->node("n1")->node.record.cordoned);
  EXPECT_TRUE(reconciler->node("n1")->node.record.blames.empty());
}

TEST_F(UnusableTest, WrongClockAndItsCorrectionGiveOneEventEach) {
  add_node("n1");
  add_node("n2");
  advance(absl::Seconds(15));
  clocks_ahead["n1"] = absl::Hours(2);
  clocks_ahead["n2"] = -absl::Seconds(20);
  advance(absl::Seconds(5));
  EXPECT_EQ(reconciler->node("n1")->node.clock_ahead, absl::Hours(2));
  EXPECT_EQ(reconciler->node("n2")->node.clock_ahead, absl::ZeroDuration());
  EXPECT_EQ(node_state("n1"), State::kReady) << "leases use only the controller's clock";
  clocks_ahead["n1"] = -absl::Hours(3);
  advance(absl::Seconds(5));
  EXPECT_EQ(reconciler->node("n1")->node.clock_ahead, -absl::Hours(3));
  clocks_ahead["n1"] = absl::ZeroDuration();
  advance(absl::Seconds(5));
  EXPECT_EQ(reconciler->node("n1")->node.clock_ahead, absl::ZeroDuration());
  const std::vector<std::string> events = node_events("n1");
  EXPECT_EQ(std::count(events.begin(), events.end(), "NodeClockOff"), 1);
  EXPECT_EQ(std::count(events.begin(), events.end(), "NodeClockRight"), 1);
  EXPECT_THAT(node_events("n2"), Not(Contains("NodeClockOff")));
}

// Another daemon that requests the id of a lost node does not hide the loss.
TEST_F(UnusableTest, AnImpostorDoesNotHideThatTheNodeIsLost) {
  FakeNode& node = add_node("n1");
  disconnect(node);
  FakeNode impostor("n1");
  impostor.instance = "another";
  EXPECT_FALSE(reconciler->open_session(hello_of(impostor), std::make_shared<FakeSession>()).ok());
  impostor.cluster = "other";  // Makes the request fail even after the lease has expired.
  for (int second = 0; second < 10; ++second) {
    EXPECT_FALSE(reconciler->open_session(hello_of(impostor), std::make_shared<FakeSession>()).ok());
    advance(absl::Seconds(1));
  }
  EXPECT_EQ(node_state("n1"), State::kLost);
  EXPECT_THAT(reconciler->node("n1")->refusal, HasSubstr("WRONG_CLUSTER"));
}

}  // namespace
}  // namespace titan::reconcile
