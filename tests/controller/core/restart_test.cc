// Restarts after failed attempts and after the controller's death.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class RestartTest : public ::testing::Test, protected World {
 protected:
  void SetUp() override {
    add_node("n1");
    add_node("n2");
    ASSERT_TRUE(submit(spec("a")).ok());
    loaded("a", 0);
  }
  void kill_rank(int rank) { exit_rank(nodes.at(rank == 0 ? "n1" : "n2"), key("a"), rank, -1, 9); }
};

TEST_F(RestartTest, AKilledRankStartsTheNextAttemptAtOnce) {
  train("a", 7);
  kill_rank(1);
  settle();
  EXPECT_EQ(state("a"), "STARTING");
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "RANK_KILLED");
  EXPECT_EQ(job("a")->attempts[0]->last_step, 7);
  EXPECT_EQ(job("a")->attempts[0]->exits.size(), 2u);
  EXPECT_GT(job("a")->attempts[0]->exits[0].report, job("a")->attempts[0]->exits[1].report) << "rank 1 exited first";
  loaded("a", 5);
  train("a", 6);
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->attempts[1]->resumed_step, 5);
  EXPECT_EQ(job("a")->attempts[1]->phase_seconds.count("replay"), 0u) << "step 6 had been reached before";
  train("a", 8);
  EXPECT_EQ(job("a")->attempts[1]->phase_seconds.count("replay"), 1u);
}

// A phase of a newer titan-worker is not understood, but the exits in the same report are.
TEST_F(RestartTest, StoresExitsOfAReportWithAnUnknownPhase) {
  train("a", 7);
  FakeNode& node = nodes.at("n2");
  FakeNode::Attempt attempt = node.attempts.at(key("a"));
  attempt.phase = v1::AttemptReport::PHASE_UNSPECIFIED;
  attempt.exits.emplace_back().set_rank(1);
  deliver(node, report(key("a"), attempt));
  settle();
  EXPECT_EQ(job("a")->attempts.back()->exits.size(), 1u);
}

// Survivors are stopped before anything is written, because every millisecond counts for the user.
TEST_F(RestartTest, SurvivorsAreStoppedWithoutWaitingForTheDisk) {
  kill_rank(1);
  ASSERT_FALSE(nodes.at("n1").session->inbox.empty());
  EXPECT_EQ(nodes.at("n1").session->inbox.back().stop().grace_milliseconds(), 0);
}

TEST_F(RestartTest, TwentyKillsWithProgressNeverBackOff) {
  for (int kill = 0; kill < 20; ++kill) {
    train("a", kill + 1);
    kill_rank(kill % 2);
    settle();
    ASSERT_EQ(state("a"), "STARTING") << kill;
    loaded("a", kill);
  }
  EXPECT_EQ(job("a")->attempts.size(), 21u);
}

TEST_F(RestartTest, NoProgressFailsAfterThreeRestarts) {
  for (int kill = 0; kill < 3; ++kill) {
    kill_rank(0);
    settle();
    advance(absl::Seconds(10));
    ASSERT_EQ(state("a"), "STARTING") << kill;
  }
  kill_rank(0);
  settle();
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "NO_PROGRESS");
  EXPECT_EQ(job("a")->attempts.size(), 4u);
  EXPECT_TRUE(submit(spec("b")).ok());
}

TEST_F(RestartTest, TheSecondRestartWaits) {
  kill_rank(0);
  settle();
  kill_rank(0);
  settle();
  EXPECT_EQ(state("a"), "RECOVERING");
  EXPECT_EQ(job("a")->pending_reason, "BACKOFF");
  ASSERT_TRUE(submit(spec("filler", 1, 0)).ok());
  EXPECT_EQ(state("filler"), "QUEUED") << "its nodes stay reserved meanwhile";
  advance(absl::Seconds(1.5));
  EXPECT_EQ(state("a"), "STARTING");
}

// Rank 1 fails on n2 twice, and the node may be the cause: the third attempt runs elsewhere, and no node is blamed.
TEST_F(RestartTest, NodeOnWhichARankFailsTwiceIsAvoided) {
  add_node("n3");
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(job("a")->attempts.back()->placements.back().node, "n2");
    exit_rank(nodes.at("n2"), key("a"), 1, 1, 0);
    settle();
  }
  advance(absl::Seconds(2));
  ASSERT_EQ(job("a")->attempts.size(), 3u);
  EXPECT_EQ(job("a")->attempts.back()->placements, (std::vector<job::Placement>{{"n1", 0, 1}, {"n3", 1, 1}}));
  EXPECT_TRUE(reconciler->node("n2")->node.record.blames.empty());
  EXPECT_FALSE(reconciler->node("n2")->node.record.cordoned);
}

TEST_F(RestartTest, ABugThatFailsEverywhereEndsTheJob) {
  for (const char* name : {"n3", "n4", "n5", "n6"}) add_node(name);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(state("a"), "STARTING") << i;
    finish_all("a", 1);
    advance(absl::Seconds(5));
  }
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "NO_PROGRESS");
}

// A job of thousands of ranks fails with as many exits: the number that is stored and reported is bounded, and includes
// those that explain the end.
TEST_F(RestartTest, StoredAndReportedExitsAreLimited) {
  FakeNode& wide = add_node("wide", 300);
  ASSERT_TRUE(submit(spec("b", 300, 300)).ok());
  ASSERT_EQ(state("b"), "STARTING");
  stops_at_once = false;
  const FakeNode::Key k = key("b");
  for (int rank = 0; rank < 299; ++rank) exit_rank(wide, k, rank, rank_protocol::kExitPeerLost, 0);
  settle();
  EXPECT_EQ(job("b")->attempts[0]->exits.size(), 64u) << "the others are shown with the attempt's end";
  EXPECT_EQ(store::scan_all(store, "exit/")->size(), 299u);
  exit_rank(wide, k, 299, 1, 0);
  settle();
  ASSERT_EQ(job("b")->attempts.size(), 2u);
  const job::AttemptRecord& ended = *job("b")->attempts[0];
  EXPECT_EQ(ended.num_exits, 300);
  ASSERT_EQ(ended.exits.size(), job::kExitsKept);
  EXPECT_EQ(ended.exits.back().rank, 299);
  EXPECT_THAT(ended.end_message, ::testing::HasSubstr("rank 299"));
  EXPECT_EQ(count_events("b", "RankExited"), 64);
  EXPECT_EQ(store::scan_all(store, "exit/")->size(), 0u);
}

TEST_F(RestartTest, AUserErrorTwiceAtTheSameStepFails) {
  for (int i = 0; i < 2; ++i) {
    event(nodes.at("n1"), key("a"), 0,
          R"({"kind":"error","class":"user","reason":"NONFINITE_LOSS","message":"loss is nan at step 3"})");
    finish_all("a", 11);
  }
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "NONFINITE_LOSS");
  EXPECT_EQ(job("a")->attempts.size(), 2u);
}

TEST_F(RestartTest, ABadConfigurationFailsAtOnce) {
  finish_all("a", 10);
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

TEST_F(RestartTest, AFolderThatANodeCannotSeeIsNamed) {
  refuses.insert("n2");
  kill_rank(0);
  settle();
  advance(absl::Seconds(5));
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "DUMP_FOLDER_NOT_SHARED");
}

// A silent node was considered lost although its rank had finished, like the other node's rank later.
TEST_F(RestartTest, AttemptConsideredFailedMayHaveFinished) {
  train("a", 1);
  stops_at_once = false;
  FakeNode& silent_one = nodes.at("n2");
  const FakeNode::Key attempt = key("a");
  disconnect(silent_one);
  exit_rank(silent_one, attempt, 1, rank_protocol::kExitFinished, 0);  // The controller does not get this exit.
  advance(absl::Seconds(20));
  ASSERT_EQ(state("a"), "RECOVERING");
  ASSERT_EQ(job("a")->attempts.size(), 1u) << "the other node has not ended its rank yet";
  connect(silent_one);
  ASSERT_EQ(silent_one.attempts.count(attempt), 1u) << "its node has not reported yet how it ended";
  deliver(silent_one, report(attempt, silent_one.attempts.at(attempt)));
  settle();
  exit_rank(nodes.at("n1"), attempt, 0, rank_protocol::kExitFinished, 0);
  settle();
  EXPECT_EQ(state("a"), "SUCCEEDED");
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  EXPECT_EQ(silent_one.attempts.count(attempt), 0u);
}

TEST_F(RestartTest, CancelWhileRecovering) {
  kill_rank(0);
  settle();
  kill_rank(0);
  settle();
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_EQ(state("a"), "CANCELLED");
  advance(absl::Seconds(5));
  EXPECT_EQ(state("a"), "CANCELLED");
}

// If a rank dies while the job saves for its cancel, the controller does not wait for the others.
TEST_F(RestartTest, ADeathWhileStoppingEndsTheJob) {
  train("a", 1);
  stops_at_once = false;
  ASSERT_TRUE(cancel("a").ok());
  stops_at_once = true;
  kill_rank(1);
  settle();
  EXPECT_EQ(state("a"), "CANCELLED");
}

// --- Restarts of the controller ---

TEST_F(RestartTest, RestartedControllerAdoptsRunningAttempts) {
  train("a", 3);
  const auto commands = [&] {
    return nodes.at("n1").count(v1::ControllerMessage::kPrepare) + nodes.at("n1").count(v1::ControllerMessage::kStop);
  };
  const int before = commands();
  crash();
  EXPECT_EQ(state("a"), "RUNNING");
  ASSERT_TRUE(submit(spec("b", 1, 0)).ok());
  EXPECT_FALSE(reconciler->scheduling()) << "it waits for the inventories";
  connect(nodes.at("n1"));
  connect(nodes.at("n2"));
  EXPECT_TRUE(reconciler->scheduling()) << "every known node has registered";
  EXPECT_EQ(commands(), before) << "no rank notices";
  train("a", 4);
  EXPECT_EQ(job("a")->progress.step, 4);
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  finish_all("a");
  EXPECT_EQ(state("a"), "SUCCEEDED");
}

// The node repeats neither an acknowledged event nor a refusal, so the store keeps both until the attempt has ended.
TEST_F(RestartTest, ErrorOfARankSurvivesTheController) {
  for (int i = 0; i < 2; ++i) {
    event(nodes.at("n1"), key("a"), 0,
          R"({"kind":"error","class":"user","reason":"NONFINITE_LOSS","message":"loss is nan at step 3"})");
    settle();
    EXPECT_EQ(store::scan_all(store, "error/")->size(), 1u);
    crash();
    connect_all();
    finish_all("a", 11);
  }
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "NONFINITE_LOSS");
  EXPECT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(store::scan_all(store, "error/")->size(), 0u);
}

TEST_F(RestartTest, LossOfTheFolderSurvivesACrash) {
  event(nodes.at("n1"), key("a"), 0,
        R"({"kind":"error","class":"fenced","reason":"FENCED","message":"taken by x","holder_job":"x",)"
        R"("holder_attempt":9,"same_job":false})");
  settle();
  crash();
  connect_all();
  finish_all("a", rank_protocol::kExitFenced);
  EXPECT_EQ(job("a")->record->failure_reason, "DUMP_FOLDER_TAKEN");
  EXPECT_EQ(job("a")->record->attempts, 1) << "another job's attempt numbers do not count";
}

TEST_F(RestartTest, ARefusalSurvivesTheController) {
  add_node("n3");
  stops_at_once = false;
  v1::WorkerMessage refused = report(key("a"), {.phase = v1::AttemptReport::REFUSED});
  refused.mutable_attempt()->set_error_reason("STATE_FOLDER_UNUSABLE");
  deliver(nodes.at("n2"), refused);
  settle();
  nodes.at("n2").attempts.erase(key("a"));
  EXPECT_EQ(store::scan_all(store, "refusal/")->size(), 1u);
  crash();
  stops_at_once = true;
  connect_all();
  advance(absl::Seconds(1));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "LAUNCH_FAILED");
  EXPECT_THAT(job("a")->attempts[0]->end_message, ::testing::HasSubstr("node n2"));
  EXPECT_EQ(job("a")->attempts[1]->placements.back().node, "n3");
  EXPECT_EQ(store::scan_all(store, "refusal/")->size(), 0u);
}

// A controller stops the survivors and dies before it has recorded why. The next one first gets their ends, and blames
// no node.
TEST_F(RestartTest, StopByADeadControllerBlamesNobody) {
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  for (int round = 0; round < 4; ++round) {
    const std::string id = absl::StrCat("s", round);
    job::SchedulingSpec one = spec(id, 2);
    one.restart.no_progress_limit = 1;
    hung = {"n1"};
    ASSERT_TRUE(submit(one).ok());
    ASSERT_EQ(state(id), "RESERVING");
    hung.clear();
    FakeNode::Attempt obeyed;
    obeyed.phase = v1::AttemptReport::ENDED;
    v1::WorkerMessage ended = report(key(id), obeyed);
    ended.mutable_attempt()->set_stopped(true);
    deliver(nodes.at("n1"), ended);
    settle();
    EXPECT_EQ(job(id)->attempts[0]->end_cause, "LAUNCH_FAILED");
    EXPECT_THAT(job(id)->attempts[0]->end_message, ::testing::HasSubstr("node n1 was ordered to stop the attempt"));
    EXPECT_TRUE(job(id)->record->avoided_nodes.empty());
    ASSERT_TRUE(cancel(id, /*now=*/true).ok());
    advance(absl::Seconds(1));
  }
  EXPECT_FALSE(reconciler->node("n1")->node.record.cordoned);
}

// The controller dies at every moment of a job's life, and the job still ends correctly.
TEST_F(RestartTest, ACrashAtAnyMomentLosesNothing) {
  for (int commits = 0; commits < 40; ++commits) {
    World world;
    world.add_node("n1");
    world.add_node("n2");
    int left = commits;
    bool crashed = false;
    const auto step = [&](const std::function<void()>& action) {
      if (!crashed && left-- == 0) {
        crashed = true;
        world.crash();
        world.connect(world.nodes.at("n1"));
        world.connect(world.nodes.at("n2"));
        world.advance(absl::Seconds(1));
      }
      action();
    };
    ASSERT_TRUE(world.submit(world.spec("a")).ok());
    for (int64_t i = 1; i <= 10; ++i) step([&] { world.train("a", i); });
    step([&] { world.exit_rank(world.nodes.at("n1"), world.key("a"), 0, -1, 9); });
    step([&] { world.settle(); });
    for (int64_t i = 11; i <= 25; ++i) step([&] { world.train("a", i); });
    step([&] { world.finish_all("a"); });
    EXPECT_EQ(world.state("a"), "SUCCEEDED") << "crash before action " << commits;
    EXPECT_EQ(world.job("a")->attempts.size(), 2u);
    EXPECT_EQ(world.count_events("a", "RankExited"), 4) << "crash before action " << commits;
  }
}

// The rank died without a controller: the node reports it in the next session.
TEST_F(RestartTest, RankThatDiedWithoutAControllerIsNoticed) {
  train("a", 3);
  crash();
  const FakeNode::Key k = key("a");
  FakeNode::Attempt& ended_part = nodes.at("n1").attempts.at(k);
  ended_part.phase = v1::AttemptReport::ENDED;
  ended_part.gone = {0};
  v1::RankExitReport& exit = ended_part.exits.emplace_back();
  exit.set_signal(9);
  exit.set_exit_code(-1);
  connect(nodes.at("n2"));
  connect(nodes.at("n1"));
  settle();
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "RANK_KILLED");
}

// Two controllers may have prepared the nodes, and all nodes must use the same token.
TEST_F(RestartTest, EveryControllerUsesTheSameTokenForAnAttempt) {
  const auto token = [this](const std::string& node) {
    std::string last;
    for (const auto& message : nodes.at(node).received) {
      if (message.has_prepare()) last = message.prepare().token();
    }
    return last;
  };
  silent = {"n2"};
  kill_rank(0);
  settle();
  exit_rank(nodes.at("n2"), key("a"), 1, -1, 9);
  settle();
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  const std::string before = token("n1");
  crash();
  silent = {};
  connect(nodes.at("n1"));
  connect(nodes.at("n2"));
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_FALSE(before.empty());
  EXPECT_EQ(token("n2"), before);
}

TEST_F(RestartTest, ACheckpointRequestSurvivesALostSession) {
  train("a", 1);
  disconnect(nodes.at("n1"));
  reconciler->checkpoint(job("a")->record->uid, [](const auto&) {});
  settle();
  EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kCheckpoint), 0);
  connect(nodes.at("n1"));
  EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kCheckpoint), 1);
}

// The metrics of a validation do not replace those of a step.
TEST_F(RestartTest, AValidationLeavesTheLossAlone) {
  train("a", 1);
  event(nodes.at("n1"), key("a"), 0, R"({"kind":"step","step":1,"metrics":{"validation_metrics/loss":3}})");
  settle();
  EXPECT_EQ(job("a")->progress.loss, 2.5);
}

TEST_F(RestartTest, PendingCancelDoesNotEndTheWaitForNodes) {
  reconciler->cancel(job("a")->record->uid, false, [](const auto&) {});
  store.run_one();
  crash();
  EXPECT_FALSE(reconciler->scheduling());
}

TEST_F(RestartTest, AnAcceptedCancelSurvivesACrash) {
  stops_at_once = false;
  reconciler->cancel(job("a")->record->uid, false, [](const auto&) {});
  store.run_one();  // The request is durable, its effect is not.
  crash();
  stops_at_once = true;
  connect(nodes.at("n1"));
  connect(nodes.at("n2"));
  EXPECT_EQ(state("a"), "CANCELLED");
}

}  // namespace
}  // namespace titan::reconcile
