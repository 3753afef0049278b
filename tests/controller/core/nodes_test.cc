// Nodes that become silent, come back, or are gone for good.

#include "common/service/rpc/error.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class NodesTest : public ::testing::Test, protected World {
 protected:
  void run_on_two_of(int count) {
    for (int i = 1; i <= count; ++i) add_node("n" + std::to_string(i));
    ASSERT_TRUE(submit(spec("a")).ok());
    loaded("a", 0);
    train("a", 1);
  }
  // Trains steps while time passes.
  void train_for(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Milliseconds(500)) {
      train("a", ++step_);
      advance(absl::Milliseconds(500));
    }
  }
  absl::Status drain(const std::string& node) {
    absl::Status status = absl::InternalError("never answered");
    reconciler->drain(node, "new disk", [&](const absl::StatusOr<NodeView>& result) { status = result.status(); });
    settle();
    return status;
  }
  absl::StatusOr<NodeView> delete_node(const std::string& node) {
    absl::StatusOr<NodeView> deleted = absl::InternalError("never answered");
    reconciler->delete_node(
        node, [&](const absl::StatusOr<NodeView>& result) { deleted = result; }, "user:alice");
    settle();
    return deleted;
  }
  std::string reason_against_deleting(const std::string& node) {
    const absl::Status refused = delete_node(node).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    return rpc::reason(refused);
  }
  static std::vector<v1::Stop> stops_of(const FakeNode& node) {
    std::vector<v1::Stop> stops;
    for (const v1::ControllerMessage& message : node.received) {
      if (message.has_stop()) stops.push_back(message.stop());
    }
    return stops;
  }
  // Restarts the controller, makes n2 silent after one step and reports the next step after `pause`. Checks that the
  // attempt continues.
  void miss_n2_after_a_restart(absl::Duration pause) {
    crash();
    connect_all();
    advance(absl::Seconds(1));
    train("a", ++step_);
    advance(absl::Milliseconds(500));
    disconnect(nodes.at("n2"));
    advance(pause);
    EXPECT_EQ(node_state("n2"), core::NodeState::kUnreachable);
    train("a", ++step_);
    EXPECT_EQ(job("a")->attempts.size(), 1u);
  }
  core::NodeState node_state(const std::string& name) { return reconciler->node(name)->node.state; }
  int64_t step_ = 1;
};

// The leader checks that all other nodes can reach it. Other nodes need only their own address, so the size of each
// node's message does not grow with the number of nodes.
TEST_F(NodesTest, OnlyTheLeaderGetsEveryAddress) {
  for (const char* name : {"n1", "n2", "n3", "n4"}) add_node(name);
  ASSERT_TRUE(submit(spec("a", 4)).ok());
  const auto launch_of = [&](const std::string& node) {
    for (const v1::ControllerMessage& message : nodes.at(node).received) {
      if (message.has_prepare()) return nlohmann::json::parse(message.prepare().launch_json());
    }
    return nlohmann::json();
  };
  const nlohmann::json leads = launch_of("n1"), follows = launch_of("n2");
  EXPECT_EQ(
      leads["nodes"],
      nlohmann::json::parse(R"([{"node":"n1","host":"n1.local","ranks":1},{"node":"n2","host":"n2.local","ranks":1},)"
                            R"({"node":"n3","host":"n3.local","ranks":1},{"node":"n4","host":"n4.local","ranks":1}])"));
  EXPECT_EQ(follows["nodes"], nlohmann::json::parse(R"([{"names":"n[1-4]","ranks":1}])"));
  EXPECT_EQ(launch_of("n3"), follows);
  EXPECT_EQ(launch_of("n4"), follows);
  nlohmann::json others = leads;
  others["nodes"] = follows["nodes"];
  EXPECT_EQ(others, follows);
  nlohmann::json without = leads;
  for (nlohmann::json& row : without["nodes"]) row["host"] = "";
  EXPECT_EQ(to_json(*rank_protocol::launch_from_json(follows)), without);
}

TEST_F(NodesTest, ALostNodeIsReplacedByAnother) {
  run_on_two_of(3);
  destroy(nodes.at("n2"));
  exit_rank(nodes.at("n1"), key("a"), 0, rank_protocol::kExitPeerLost, 0);  // Its peer notices first.
  settle();
  EXPECT_EQ(state("a"), "RECOVERING");
  advance(absl::Seconds(6));
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "NODE_LOST");
  EXPECT_EQ(job("a")->attempts[1]->placements, (std::vector<job::Placement>{{"n1", 0, 1}, {"n3", 1, 1}}));
  EXPECT_EQ(node_state("n2"), core::NodeState::kLost);
}

// If there is no other node, the job shows what it waits for.
TEST_F(NodesTest, JobWithoutAReplacementNodeSaysWhy) {
  run_on_two_of(2);
  destroy(nodes.at("n2"));
  exit_rank(nodes.at("n1"), key("a"), 0, rank_protocol::kExitPeerLost, 0);
  settle();
  advance(absl::Seconds(10));
  EXPECT_EQ(state("a"), "RECOVERING");
  EXPECT_EQ(job("a")->pending_reason, "RANKS_PER_NODE_UNSATISFIABLE");
  EXPECT_THAT(job("a")->pending_message, ::testing::HasSubstr("needs 2 nodes with 1 cpu device each"));
}

// The daemon is gone and the ranks keep training: the other node's beacons show it, and nothing is restarted.
TEST_F(NodesTest, AnUnreachableNodeIsLeftAloneWhileTheJobAdvances) {
  run_on_two_of(3);
  disconnect(nodes.at("n2"));
  train_for(absl::Seconds(30));
  EXPECT_EQ(node_state("n2"), core::NodeState::kUnreachable);
  EXPECT_EQ(state("a"), "RUNNING");
  connect(nodes.at("n2"));
  EXPECT_EQ(node_state("n2"), core::NodeState::kReady);
  train_for(absl::Seconds(2));
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  EXPECT_EQ(nodes.at("n2").count(v1::ControllerMessage::kStop), 0);
}

TEST_F(NodesTest, AnUnreachableNodeIsLostWhenTheJobStandsStill) {
  run_on_two_of(3);
  disconnect(nodes.at("n2"));
  train_for(absl::Seconds(10));
  EXPECT_EQ(node_state("n2"), core::NodeState::kUnreachable);
  advance(absl::Seconds(6));
  EXPECT_EQ(node_state("n2"), core::NodeState::kLost);
  EXPECT_EQ(job("a")->attempts.size(), 2u);
}

// While ranks load, no node shows progress between begin and end, not even those that are connected.
TEST_F(NodesTest, NodeThatIsSilentDuringALoadIsLeftAlone) {
  for (const char* name : {"n1", "n2", "n3"}) add_node(name);
  ASSERT_TRUE(submit(spec("a")).ok());
  for (auto& [name, node] : nodes) {
    for (auto& [key, attempt] : node.attempts) attempt.rank_phase = "load";
  }
  advance(absl::Seconds(1));
  disconnect(nodes.at("n2"));
  advance(absl::Seconds(20));
  EXPECT_EQ(node_state("n2"), core::NodeState::kUnreachable);
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

// The time from a node's return to its next step is not a step time: it would make all later steps look slow.
TEST_F(NodesTest, StepsAreNotMeasuredFromANodesReturn) {
  for (const char* name : {"n1", "n2", "n3"}) add_node(name);
  ASSERT_TRUE(submit(spec("a")).ok());
  loaded("a", 0);
  connect_all();
  train("a", 1);
  advance(absl::Milliseconds(500));
  disconnect(nodes.at("n2"));
  for (int64_t step = 2; step < 5; ++step) {
    train("a", step);
    advance(absl::Seconds(7));
    EXPECT_EQ(job("a")->attempts.size(), 1u) << step;
  }
  EXPECT_EQ(node_state("n2"), core::NodeState::kUnreachable);
}

// The first step that a restarted controller sees began before it started, and looks short.
TEST_F(NodesTest, RestartedControllerKnowsTheStepTime) {
  run_on_two_of(3);
  for (; step_ < 6; train("a", ++step_)) advance(absl::Seconds(4));
  miss_n2_after_a_restart(absl::Seconds(10));
}

// The same holds if no step time was known before: one step is too few to know how long steps take.
TEST_F(NodesTest, RestartedControllerIgnoresAPartialStep) {
  run_on_two_of(3);
  miss_n2_after_a_restart(absl::Seconds(7));
}

TEST_F(NodesTest, JobOnSilentNodesWaitsForItsGracePeriod) {
  run_on_two_of(3);
  disconnect(nodes.at("n1"));
  disconnect(nodes.at("n2"));
  advance(absl::Seconds(50));
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->pending_reason, "NODE_UNREACHABLE");
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  advance(absl::Seconds(20));
  EXPECT_EQ(state("a"), "RECOVERING");
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "NODE_LOST");
}

TEST_F(NodesTest, JobOnSilentNodesContinuesWhenTheyReturn) {
  run_on_two_of(2);
  disconnect(nodes.at("n1"));
  disconnect(nodes.at("n2"));
  advance(absl::Seconds(30));
  connect(nodes.at("n1"));
  connect(nodes.at("n2"));
  train_for(absl::Seconds(3));
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->pending_reason, "");
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

// A lost node returns with its old attempt: it gets orders to stop and to forget it.
TEST_F(NodesTest, ALateNodeLosesItsOldAttempt) {
  run_on_two_of(3);
  const FakeNode::Key old = key("a");
  disconnect(nodes.at("n2"));
  advance(absl::Seconds(10));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(nodes.at("n2").attempts.count(old), 1u);
  connect(nodes.at("n2"));
  settle();
  EXPECT_EQ(nodes.at("n2").attempts.count(old), 0u);
  EXPECT_EQ(job("a")->attempts.size(), 2u);
}

// The node was silent while it prepared, in an unbroken session: its beats do not list the prepared attempt.
TEST_F(NodesTest, AttemptPreparedDuringSilenceIsStopped) {
  FakeNode& node = add_node("n1");
  hung = silent = {"n1"};
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  const FakeNode::Key old = key("a");
  add_node("n2");
  advance(absl::Seconds(70));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  ASSERT_EQ(job("a")->attempts[0]->end_cause, "NODE_LOST");
  EXPECT_TRUE(stops_of(node).empty());
  silent.clear();
  advance(absl::Seconds(1));
  EXPECT_EQ(node_state("n1"), core::NodeState::kReady);
  const auto stops = stops_of(node);
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].id().number(), old.second);
  EXPECT_FALSE(stops[0].save());
}

// A node that beats rarely within its lease, with idle ranks, does not prove that the job makes progress.
TEST_F(NodesTest, RareBeatsAreNotProgress) {
  run_on_two_of(3);
  silent = {"n2"};
  for (int i = 0; i < 48; ++i) {  // n1 beats every four seconds, and its rank waits for the one on n2.
    clock.advance(absl::Milliseconds(500));
    if (i % 8 == 0) beat(nodes.at("n1"));
    beat(nodes.at("n3"));
    reconciler->tick();
    settle();
  }
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "NODE_LOST");
}

TEST_F(NodesTest, NodeThatReturnsEmptyEndsTheAttempt) {
  run_on_two_of(2);
  destroy(nodes.at("n2"));
  connect(nodes.at("n2"));  // Rebooted within its lease.
  settle();
  EXPECT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(state("a"), "STARTING");
}

// The lost node does not return after a restart of the controller: the job moves on after one lease.
TEST_F(NodesTest, NodeLostDuringAControllerRestartIsReplaced) {
  run_on_two_of(3);
  train_for(absl::Seconds(3));
  destroy(nodes.at("n2"));
  crash();
  connect(nodes.at("n1"));
  connect(nodes.at("n3"));
  EXPECT_FALSE(reconciler->scheduling());
  advance(absl::Seconds(7));
  EXPECT_TRUE(reconciler->scheduling());
  EXPECT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(state("a"), "STARTING");
}

// After a start all nodes return at once, and each registration takes 2 ms: leases begin only after that.
TEST_F(NodesTest, ALargeClusterHasTimeToRegister) {
  std::vector<store::Record> records = copy_store();
  for (int i = 0; i < 2000; ++i) {
    job::NodeRecord record;
    record.name = absl::StrCat("m", i);
    record.device = "cpu";
    record.devices = 1;
    records.push_back({node_key(record.name), job::encode(record)});
  }
  const auto lost = [&] {
    int count = 0;
    for (const NodeView& view : reconciler->nodes()) count += view.node.state == core::NodeState::kLost;
    return count;
  };
  crash_to(records);
  advance(absl::Seconds(9));
  EXPECT_EQ(lost(), 0) << "4 s to register, and the lease of 5 s";
  advance(absl::Seconds(1));
  EXPECT_EQ(lost(), 2000);
}

TEST_F(NodesTest, ShortSilenceIsTolerated) {
  run_on_two_of(2);
  silent.insert("n2");
  advance(absl::Seconds(3));
  silent.clear();
  advance(absl::Seconds(3));
  EXPECT_EQ(node_state("n2"), core::NodeState::kReady);
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

// The link to the node is cut one way: its beats and events arrive, but no command reaches it.
TEST_F(NodesTest, NodeThatReceivesNothingBecomesUnreachable) {
  run_on_two_of(3);
  deaf_since["n2"] = clock.monotonic();
  train_for(absl::Seconds(5));
  EXPECT_EQ(node_state("n2"), core::NodeState::kReady);
  EXPECT_FALSE(reconciler->node("n2")->node.can_take_ranks()) << "three beats were not answered";
  train_for(absl::Seconds(1));
  EXPECT_EQ(node_state("n2"), core::NodeState::kUnreachable);
  train_for(absl::Seconds(30));
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  deaf_since.clear();
  train_for(absl::Seconds(1));
  EXPECT_EQ(node_state("n2"), core::NodeState::kReady);
  EXPECT_TRUE(reconciler->node("n2")->node.can_take_ranks());
}

// Messages that arrive after a pause of the controller were written during it, so they do not show a broken link.
TEST_F(NodesTest, ControllerPauseMakesNoNodeUnreachable) {
  run_on_two_of(2);
  advance(absl::Seconds(1));
  deaf_since["n1"] = deaf_since["n2"] = clock.monotonic();
  clock.advance(absl::Seconds(20));
  for (int i = 0; i < 3; ++i) {
    beat(nodes.at("n1"));
    beat(nodes.at("n2"));
    reconciler->tick();
    settle();
    EXPECT_EQ(node_state("n2"), core::NodeState::kReady);
  }
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

// The node's link is up and down repeatedly: it gets no new work, and its ranks are left alone.
TEST_F(NodesTest, NodeWithAFlappingLinkIsCordoned) {
  run_on_two_of(3);
  const auto flap = [&](int times) {
    for (int i = 0; i < times; ++i) {
      disconnect(nodes.at("n2"));
      advance(absl::Milliseconds(500));
      connect(nodes.at("n2"));
      advance(absl::Milliseconds(500));
    }
  };
  flap(6);
  advance(absl::Minutes(1));
  flap(6);
  EXPECT_FALSE(reconciler->node("n2")->node.flapping) << "so many reconnects within more than a minute are tolerated";
  EXPECT_FALSE(reconciler->node("n2")->node.record.cordoned);
  flap(2);
  EXPECT_TRUE(reconciler->node("n2")->node.flapping);
  EXPECT_THAT(reconciler->node("n2")->node.record.cordon_reason, ::testing::HasSubstr("goes up and down"));
  flap(20);
  advance(absl::Minutes(2));
  EXPECT_FALSE(reconciler->node("n2")->node.flapping);
  EXPECT_TRUE(reconciler->node("n2")->node.record.cordoned) << "until an operator uncordons it";
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

TEST_F(NodesTest, ASecondDaemonWithTheSameIdIsRefused) {
  add_node("n1");
  v1::Register hello;
  hello.set_node("n1");
  hello.set_instance("another");
  EXPECT_EQ(reconciler->open_session(hello, std::make_shared<FakeSession>()).code(), absl::StatusCode::kAlreadyExists);
  hello.set_node("N1!");
  EXPECT_EQ(reconciler->open_session(hello, std::make_shared<FakeSession>()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NodesTest, ANewSessionReplacesTheOldOne) {
  FakeNode& node = add_node("n1");
  const std::shared_ptr<FakeSession> old = node.session;
  connect(node);
  EXPECT_TRUE(old->closed);
  EXPECT_EQ(node.received.back().welcome().lease_epoch(), 2);
  v1::WorkerMessage beat;
  beat.mutable_beat();
  old->inbox.clear();
  reconciler->on_message("n1", old, beat);
  EXPECT_TRUE(old->inbox.empty()) << "messages of the old session are ignored";
}

// Draining a node loses no step: its ranks are ordered to save, and the next attempt runs elsewhere.
TEST_F(NodesTest, JobsSaveBeforeTheyLeaveADrainedNode) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 5);
  FakeNode& other = add_node("n2");
  ASSERT_TRUE(drain("n1").ok());
  const auto stops = stops_of(nodes.at("n1"));
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_TRUE(stops[0].save());
  EXPECT_EQ(stops[0].reason(), "NODE_DRAINED");
  EXPECT_GT(stops[0].grace_milliseconds(), 0);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "STOPPED");
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[1]->placements[0].node, "n2");
  EXPECT_EQ(other.attempts.size(), 1u);
  EXPECT_EQ(count_events("a", "NodeDraining"), 1);
  EXPECT_TRUE(reconciler->node("n1")->jobs.empty());
  EXPECT_TRUE(reconciler->node("n1")->node.record.cordoned);
}

// A second drain while the ranks still save sends nothing; a restarted controller sends the request again without a
// client.
TEST_F(NodesTest, EachControllerSendsADrainOnce) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 5);
  stops_at_once = false;  // The save takes some time.
  ASSERT_TRUE(drain("n1").ok());
  ASSERT_TRUE(drain("n1").ok());
  EXPECT_EQ(stops_of(node).size(), 1u);
  EXPECT_EQ(reconciler->node("n1")->jobs.size(), 1u);
  crash();
  connect_all();
  EXPECT_TRUE(reconciler->node("n1")->node.record.cordoned) << "durable";
  EXPECT_EQ(stops_of(node).size(), 2u);
  ASSERT_TRUE(drain("n1").ok());
  EXPECT_EQ(stops_of(node).size(), 2u);
  EXPECT_EQ(drain("n9").code(), absl::StatusCode::kNotFound);
}

// Without a second request the job leaves, even if it was only prepared when the drain was accepted, or starts under
// the next controller.
TEST_F(NodesTest, DrainSurvivesTheControllerAndItsClient) {
  for (const bool starts_later : {false, true}) {
    World world;
    FakeNode& node = world.add_node("n1");
    if (starts_later) world.hung = {"n1"};
    ASSERT_TRUE(world.submit(world.spec("a", 1, 0)).ok());
    world.add_node("n2");
    if (!starts_later) world.silent = {"n1"};
    world.reconciler->drain(
        "n1", "new disk", [](const auto&) {}, "bob");
    world.settle();
    world.crash();
    world.hung = world.silent = {};
    node.session = nullptr;
    world.connect_all();
    world.advance(absl::Seconds(1));
    EXPECT_EQ(world.reconciler->node("n1")->node.record.drain.reason, "new disk");
    ASSERT_EQ(world.job("a")->attempts.size(), 2u) << starts_later;
    EXPECT_EQ(world.job("a")->attempts[0]->end_cause, "STOPPED");
    EXPECT_EQ(world.job("a")->attempts[1]->placements[0].node, "n2");
    EXPECT_EQ(world.count_events("a", "NodeDraining"), starts_later ? 1 : 2)
        << "once from each controller that sent the drain";
  }
}

TEST_F(NodesTest, AnUncordonEndsADrain) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(drain("n1").ok());
  ASSERT_NE(reconciler->node("n1")->node.record.drain.time_ns, 0);
  reconciler->cordon("n1", true, "still", [](const auto&) {});
  settle();
  EXPECT_NE(reconciler->node("n1")->node.record.drain.time_ns, 0) << "a cordon is less than a drain";
  reconciler->cordon("n1", false, "", [](const auto&) {});
  settle();
  EXPECT_EQ(reconciler->node("n1")->node.record.drain.time_ns, 0);
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  crash();
  connect_all();
  advance(absl::Seconds(1));
  EXPECT_TRUE(stops_of(node).empty());
}

// A job that cannot save would lose all its training if it left the node.
TEST_F(NodesTest, AJobThatCannotSaveStaysOnADrainedNode) {
  saves = false;
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 5);
  ASSERT_TRUE(drain("n1").ok());
  EXPECT_TRUE(stops_of(node).empty());
  EXPECT_EQ(state("a"), "RUNNING");
  finish_all("a");
  EXPECT_EQ(state("a"), "SUCCEEDED");
  EXPECT_TRUE(reconciler->node("n1")->jobs.empty());
}

TEST_F(NodesTest, CordonKeepsRanksAndTakesNoNew) {
  run_on_two_of(2);
  absl::Status status;
  const auto cordon = [&](bool on) {
    reconciler->cordon("n1", on, "disk", [&](const auto& result) { status = result.status(); });
    settle();
  };
  cordon(true);
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(reconciler->node("n1")->node.record.cordoned);
  train("a", 2);
  EXPECT_EQ(state("a"), "RUNNING");
  crash();
  EXPECT_TRUE(reconciler->node("n1")->node.record.cordoned) << "cordons are durable";
  connect(nodes.at("n1"));
  connect(nodes.at("n2"));
  finish_all("a");
  ASSERT_TRUE(submit(spec("b")).ok());
  EXPECT_EQ(state("b"), "QUEUED");
  cordon(false);
  EXPECT_EQ(state("b"), "STARTING");
  reconciler->cordon("nowhere", true, "", [&](const auto& result) { status = result.status(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
}

TEST_F(NodesTest, LostNodesAreDeletedForGood) {
  add_node("n1");
  add_node("n10");
  EXPECT_EQ(reason_against_deleting("n1"), "NODE_NOT_LOST");
  disconnect(nodes.at("n1"));
  EXPECT_EQ(reason_against_deleting("n1"), "NODE_NOT_LOST") << "its lease has not expired";
  advance(absl::Seconds(6));
  const auto deleted = delete_node("n1");
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_EQ(deleted->node.state, core::NodeState::kLost);
  EXPECT_THAT(journal->lines.back(), ::testing::HasSubstr("event=NodeDeleted node=n1 actor=user:alice"));
  EXPECT_TRUE(absl::IsNotFound(delete_node("n1").status()));
  EXPECT_TRUE(store::scan_all(store, node_events_prefix("n1"))->empty());
  EXPECT_FALSE(store::scan_all(store, node_events_prefix("n10"))->empty()) << "events of another node stay";
  crash();
  EXPECT_TRUE(absl::IsNotFound(reconciler->node("n1").status()));
  connect_all();
  EXPECT_EQ(node_state("n1"), core::NodeState::kReady) << "it returns as a new node";
  ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
  EXPECT_EQ(state("a"), "STARTING");
}

TEST_F(NodesTest, NodeThatMayRunRanksIsNotDeleted) {
  run_on_two_of(2);
  FakeNode& node = nodes.at("n2");
  silent = {"n2"};
  node.session = nullptr;
  reconciler->tick();
  train_for(absl::Seconds(20));
  ASSERT_EQ(node_state("n2"), core::NodeState::kUnreachable);
  EXPECT_EQ(reason_against_deleting("n2"), "NODE_NOT_LOST");
}

// Ranks that could not be ended are still there, whatever happens to their node.
TEST_F(NodesTest, ANodeWithStraysIsNotDeleted) {
  run_on_two_of(3);
  hung = {"n1"};
  exit_rank(nodes.at("n2"), key("a"), 1, 1, 0);
  settle();
  advance(absl::Seconds(31));
  ASSERT_EQ(reconciler->node("n1")->devices_used, 1);
  disconnect(nodes.at("n1"));
  advance(absl::Seconds(6));
  ASSERT_EQ(node_state("n1"), core::NodeState::kLost);
  EXPECT_EQ(reason_against_deleting("n1"), "NODE_IN_USE");
}

// Both requests arrive before either is durable.
TEST_F(NodesTest, ConcurrentCordonDoesNotRestoreADeletedNode) {
  add_node("n1");
  disconnect(nodes.at("n1"));
  advance(absl::Seconds(6));
  absl::Status cordoned, deleted = absl::InternalError("never answered");
  reconciler->cordon("n1", true, "disk", [&](const absl::StatusOr<NodeView>& result) { cordoned = result.status(); });
  reconciler->delete_node("n1", [&](const absl::StatusOr<NodeView>& result) { deleted = result.status(); });
  settle();
  EXPECT_TRUE(deleted.ok()) << deleted;
  EXPECT_TRUE(absl::IsNotFound(cordoned)) << cordoned;
  crash();
  EXPECT_TRUE(reconciler->nodes().empty());
}

}  // namespace
}  // namespace titan::reconcile
