// An attempt that is neither queued nor training shows what it waits for, only while it waits.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class WaitsTest : public World, public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* node : {"n1", "n2"}) add_node(node);
  }
  std::string waits(const std::string& id) {
    const JobViewPtr view = job(id);
    return absl::StrCat(view->pending_reason, ": ", view->pending_message);
  }
};

TEST_F(WaitsTest, ShowsAReasonUntilTheFirstStep) {
  hung = {"n2"};
  ASSERT_TRUE(submit(spec("a", 2)).ok());
  advance(absl::Seconds(6));
  ASSERT_EQ(state("a"), "RESERVING");
  EXPECT_EQ(waits("a"), "PREPARING: the attempt is not prepared on 1 of 2 nodes: n2");
  advance(absl::Seconds(3));
  disconnect(nodes.at("n2"));
  advance(absl::Seconds(2));
  EXPECT_EQ(waits("a"), "PREPARING: the attempt is not prepared on 1 of 2 nodes: n2 (silent)");

  hung.clear();
  connect(nodes.at("n2"));
  ASSERT_EQ(state("a"), "STARTING");
  for (auto& [name, node] : nodes) node.attempts.at(key("a")).rank_phase = name == "n1" ? "load" : "rendezvous";
  advance(absl::Seconds(6));
  EXPECT_EQ(waits("a"), "NO_STEP_YET: no rank has finished a step yet: 1 rank in load, 1 rank in rendezvous");
  loaded("a", 0);
  train("a", 1);
  advance(absl::Seconds(1));
  ASSERT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(waits("a"), ": ");
}

TEST_F(WaitsTest, NamesNodesWhoseRanksHaveNotStarted) {
  ASSERT_TRUE(submit(spec("a", 2)).ok());
  crash();  // Prepared and ordered to start; n2 reports now that it has not started.
  nodes.at("n2").attempts.at(key("a")).phase = v1::AttemptReport::PREPARED;
  hung = {"n2"};
  connect_all();
  advance(absl::Seconds(6));
  ASSERT_EQ(state("a"), "STARTING");
  EXPECT_EQ(waits("a"), "STARTING_RANKS: its ranks do not run yet on 1 of 2 nodes: n2");
}

TEST_F(WaitsTest, StopsNameNodesThatHaveNotEnded) {
  ASSERT_TRUE(submit(spec("a", 2)).ok());
  train("a", 1);
  ASSERT_EQ(state("a"), "RUNNING");
  hung = {"n1", "n2"};
  ASSERT_TRUE(cancel("a").ok());
  advance(absl::Seconds(6));
  ASSERT_EQ(state("a"), "STOPPING");
  EXPECT_EQ(waits("a"), "ENDING: the attempt, which may still save, has not ended on 2 of 2 nodes: n1, n2");
  finish_all("a", 16);
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(waits("a"), ": ");
}

TEST_F(WaitsTest, FailedAttemptNamesNodesThatHaveNotEnded) {
  ASSERT_TRUE(submit(spec("a", 2)).ok());
  train("a", 1);
  hung = {"n1"};
  exit_rank(nodes.at("n2"), key("a"), 1, 1, 0);
  advance(absl::Seconds(6));
  ASSERT_EQ(state("a"), "RECOVERING");
  EXPECT_EQ(waits("a"), "ENDING: what is left of the failed attempt has not ended on 1 of 2 nodes: n1");
  crash();
  connect_all();
  advance(absl::Seconds(6));
  EXPECT_EQ(waits("a"), "ENDING: what is left of the failed attempt has not ended on 1 of 2 nodes: n1")
      << "a restarted controller learns it from the nodes' reports";
}

TEST_F(WaitsTest, RequestedSaveIsShownUntilItEnds) {
  ASSERT_TRUE(submit(spec("a", 2)).ok());
  train("a", 1);
  for (const char* end : {R"({"kind":"checkpoint_committed","step":1,"full":true,"seconds":0.1})",
                          R"({"kind":"checkpoint_failed","step":2,"reason":"the disk is full"})"}) {
    reconciler->checkpoint(job("a")->record->uid, [](const auto&) {});
    settle();
    for (auto& [name, node] : nodes) node.attempts.at(key("a")).rank_phase = name == "n1" ? "checkpoint" : "train";
    advance(absl::Seconds(6));
    ASSERT_EQ(state("a"), "CHECKPOINTING");
    EXPECT_EQ(waits("a"),
              "SAVING: the requested checkpoint is not committed yet: 1 rank in checkpoint, 1 rank in train");
    event(nodes.at("n1"), key("a"), 0, end);
    settle();
    EXPECT_EQ(state("a"), "RUNNING");
    EXPECT_EQ(waits("a"), ": ");
  }
}

// If no node of the job can be reached, that reason is shown instead.
TEST_F(WaitsTest, UnreachableNodesAreShownFirst) {
  ASSERT_TRUE(submit(spec("a", 2)).ok());
  loaded("a", 0);
  silent = {"n1", "n2"};
  advance(absl::Seconds(12));
  EXPECT_EQ(job("a")->pending_reason, "NODE_UNREACHABLE");
}

}  // namespace
}  // namespace titan::reconcile
