#include "controller/scheduler/plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Placements = std::vector<job::Placement>;

NodeView node(const std::string& name, int devices, int free) { return {name, "cpu", devices, free, true, false}; }
JobView job(const std::string& name, int ranks, int per_node = 0, int priority = 0, int64_t order = 0) {
  return {name, name, "cpu", ranks, per_node, priority, order, false, {}};
}

TEST(SchedulerTest, OneRankOnEachOfTwoWorkers) {
  const auto decisions = plan({job("a", 2, 1)}, {node("n2", 1, 1), node("n1", 1, 1)});
  EXPECT_EQ(decisions[0].placements, (Placements{{"n1", 0, 1}, {"n2", 1, 1}}));
}

TEST(SchedulerTest, TwoSingleDeviceWorkersHoldTwoRanksWithoutBeingTold) {
  const auto decisions = plan({job("a", 2)}, {node("n1", 1, 1), node("n2", 1, 1)});
  EXPECT_EQ(decisions[0].placements, (Placements{{"n1", 0, 1}, {"n2", 1, 1}}));
}

TEST(SchedulerTest, FewestNodesAndTheTightestFit) {
  const auto decisions = plan({job("a", 2)}, {node("n1", 8, 8), node("n2", 4, 3), node("n3", 2, 1)});
  EXPECT_EQ(decisions[0].placements, (Placements{{"n2", 0, 2}}));
  const auto wide = plan({job("b", 9)}, {node("n1", 8, 8), node("n2", 4, 3), node("n3", 2, 1)});
  EXPECT_EQ(wide[0].placements, (Placements{{"n1", 0, 8}, {"n2", 8, 1}}));
}

TEST(SchedulerTest, AllOrNothing) {
  const auto decisions = plan({job("a", 4)}, {node("n1", 2, 2), node("n2", 2, 1)});
  EXPECT_TRUE(decisions[0].placements.empty());
  EXPECT_EQ(decisions[0].reason, "INSUFFICIENT_DEVICES");
  EXPECT_EQ(decisions[0].message, "needs 4 cpu devices; 3 of 4 are free on 2 nodes");
}

TEST(SchedulerTest, SaysWhyAJobWaits) {
  EXPECT_EQ(plan({job("a", 1)}, {})[0].reason, "NO_NODES");
  NodeView cordoned = node("n1", 1, 1);
  cordoned.cordoned = true;
  EXPECT_EQ(plan({job("a", 1)}, {cordoned})[0].reason, "ALL_CORDONED");
  JobView cuda = job("a", 1);
  cuda.device = "cuda";
  EXPECT_EQ(plan({cuda}, {node("n1", 1, 1)})[0].reason, "WRONG_DEVICE");
  const auto narrow = plan({job("a", 4, 2)}, {node("n1", 2, 2), node("n2", 1, 1)});
  EXPECT_EQ(narrow[0].reason, "RANKS_PER_NODE_UNSATISFIABLE");
  EXPECT_EQ(narrow[0].message, "needs 2 nodes with 2 cpu devices each; 1 of 2 nodes has so many");
}

// A node that failed a job is left alone as long as the others could hold the job, also when they are busy now.
TEST(SchedulerTest, AvoidsANodeWhileOthersCouldDo) {
  JobView shy = job("a", 1);
  shy.avoided = {"n1"};
  EXPECT_EQ(plan({shy}, {node("n1", 4, 1), node("n2", 4, 4)})[0].placements, (Placements{{"n2", 0, 1}}));
  const auto waits = plan({shy}, {node("n1", 4, 4), node("n2", 4, 0)});
  EXPECT_TRUE(waits[0].placements.empty());
  EXPECT_EQ(waits[0].message, "needs 1 cpu device; 0 of 4 are free on 1 node (avoided: n1)");
  EXPECT_EQ(plan({shy}, {node("n1", 4, 4)})[0].placements, (Placements{{"n1", 0, 1}})) << "there is no other";
}

TEST(SchedulerTest, PriorityThenAge) {
  const auto decisions =
      plan({job("old", 1, 0, 0, 1), job("new", 1, 0, 0, 2), job("urgent", 1, 0, 5, 3)}, {node("n1", 2, 2)});
  EXPECT_EQ(decisions[0].uid, "urgent");
  EXPECT_EQ(decisions[1].uid, "old");
  EXPECT_FALSE(decisions[1].placements.empty());
  EXPECT_TRUE(decisions[2].placements.empty());
}

// A large job collects nodes; smaller ones behind it may only use what it does not wait for.
TEST(SchedulerTest, ALargeJobIsNotStarved) {
  const auto decisions =
      plan({job("large", 4, 2, 0, 1), job("small", 1, 0, 0, 2)}, {node("n1", 2, 1), node("n2", 2, 0)});
  EXPECT_TRUE(decisions[0].placements.empty());
  EXPECT_TRUE(decisions[1].placements.empty());
  EXPECT_EQ(decisions[1].reason, "BEHIND_IN_QUEUE");
  EXPECT_THAT(decisions[1].message, HasSubstr("large"));
  const auto roomy = plan({job("large", 4, 2, 0, 1), job("small", 1, 0, 0, 2)},
                          {node("n1", 2, 1), node("n2", 2, 2), node("n3", 1, 1)});
  EXPECT_EQ(roomy[1].placements, (Placements{{"n3", 0, 1}}));
}

// A job that can never run here does not hold up the others.
TEST(SchedulerTest, AnImpossibleJobBlocksNobody) {
  const auto decisions = plan({job("huge", 64, 0, 9, 1), job("small", 1, 0, 0, 2)}, {node("n1", 2, 2)});
  EXPECT_EQ(decisions[0].reason, "INSUFFICIENT_DEVICES");
  EXPECT_FALSE(decisions[1].placements.empty());
}

// volcano#5805: the slot that a gang lost must not go to a filler, not even to one of higher priority.
TEST(SchedulerTest, ARecoveringGangComesFirstAndKeepsItsNodes) {
  JobView gang = job("gang", 2, 1, 0, 5);
  gang.recovering = true;
  gang.reserved = {{"n1", 1}};
  const auto decisions = plan({job("filler", 1, 0, 9, 1), gang}, {node("n1", 1, 1), node("n3", 1, 1)});
  EXPECT_EQ(decisions[0].uid, "gang");
  EXPECT_EQ(decisions[0].placements, (Placements{{"n1", 0, 1}, {"n3", 1, 1}}));
  EXPECT_TRUE(decisions[1].placements.empty());
}

// Two gangs that each keep a node and miss another would wait for each other for ever: the earlier one takes the later
// one's.
TEST(SchedulerTest, TwoRecoveringGangsDoNotBlockEachOther) {
  JobView first = job("first", 2, 1, 0, 1), second = job("second", 2, 1, 0, 2);
  first.recovering = second.recovering = true;
  first.reserved = {{"n1", 1}};
  second.reserved = {{"n2", 1}};
  const auto decisions = plan({second, first}, {node("n1", 1, 1), node("n2", 1, 1)});
  EXPECT_EQ(decisions[0].placements, (Placements{{"n1", 0, 1}, {"n2", 1, 1}}));
  EXPECT_TRUE(decisions[1].placements.empty());
}

TEST(SchedulerTest, ACordonedNodeGetsNothingNew) {
  NodeView cordoned = node("n1", 2, 2);
  cordoned.cordoned = true;
  JobView recovering = job("a", 1);
  recovering.recovering = true;
  recovering.reserved = {{"n1", 1}};
  const auto decisions = plan({recovering}, {cordoned, node("n2", 1, 1)});
  EXPECT_EQ(decisions[0].placements, (Placements{{"n2", 0, 1}}));
}

// Whether it could ever run is asked of idle nodes: what is busy, cordoned or away now may serve it tomorrow.
TEST(MisfitTest, LooksAtWhatTheNodesAreAndNotAtWhatTheyDo) {
  std::vector<NodeView> nodes = {{"n1", "cpu", 2, 0, false, true}, {"n2", "cpu", 2, 0, true, false}};
  JobView job;
  job.device = "cpu";
  job.ranks = 4;
  job.ranks_per_node = 2;
  EXPECT_FALSE(misfit(job, nodes));
  job.ranks_per_node = 0;
  EXPECT_FALSE(misfit(job, nodes));
  job.ranks_per_node = 1;
  ASSERT_TRUE(misfit(job, nodes));
  EXPECT_EQ(misfit(job, nodes)->reason, "RANKS_PER_NODE_UNSATISFIABLE");
  EXPECT_NE(misfit(job, nodes)->message.find("the largest has 2"), std::string::npos);
  job.ranks = 5;
  job.ranks_per_node = 0;
  EXPECT_EQ(misfit(job, nodes)->reason, "INSUFFICIENT_DEVICES");
  job.device = "cuda";
  EXPECT_EQ(misfit(job, nodes)->reason, "WRONG_DEVICE");
  EXPECT_EQ(misfit(job, {})->reason, "NO_NODES");
}

}  // namespace
}  // namespace titan::scheduler
