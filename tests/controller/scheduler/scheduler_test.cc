#include "controller/scheduler/scheduler.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Runs = std::vector<Run>;

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

std::vector<int> first(int count) {
  std::vector<int> devices(count);
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

PendingJob job(const std::string& name, int ranks, int per_node = 0, int priority = 0, int64_t order = 0) {
  PendingJob job;
  job.uid = job.name = name;
  job.device = "cpu";
  job.ranks = ranks;
  job.ranks_per_node = per_node;
  job.priority = priority;
  job.order = order;
  return job;
}

PendingJob in_units(PendingJob job, int unit) {
  job.unit = unit;
  return job;
}

PendingJob limited(PendingJob job, absl::Duration limit) {
  job.time_limit = limit;
  return job;
}

PendingJob recovering(PendingJob job, std::map<std::string, std::vector<int>> reserved) {
  job.recovering = true;
  job.reserved = std::move(reserved);
  return job;
}

std::vector<std::string> nodes_of(const Runs& runs) {
  std::vector<std::string> nodes;
  for (const Run& run : runs) nodes.push_back(run.node);
  return nodes;
}

class SchedulerTest : public ::testing::Test {
 protected:
  // Adds a node; a separate owner occupies its last devices.
  void node(const std::string& name, int devices, int free, const std::string& domain = "") {
    scheduler_.set_node({name, "cpu", devices, domain});
    if (free == devices) return;
    std::vector<int> taken(devices - free);
    std::iota(taken.begin(), taken.end(), free);
    scheduler_.occupy("on " + name, name, taken);
  }

  // Returns outcomes by uid; jobs without an outcome are missing.
  std::map<std::string, Outcome> cycle(absl::Duration since = absl::ZeroDuration()) {
    std::map<std::string, Outcome> outcomes;
    for (Outcome& outcome : scheduler_.cycle(kStart + since)) outcomes[outcome.uid] = std::move(outcome);
    return outcomes;
  }

  Outcome place(const PendingJob& job) {
    scheduler_.add_job(job);
    return cycle()[job.uid];
  }

  Scheduler scheduler_;
};

TEST_F(SchedulerTest, OneRankOnEachOfTwoWorkers) {
  node("n2", 1, 1);
  node("n1", 1, 1);
  EXPECT_EQ(place(job("a", 2, 1)).runs, (Runs{{"n1", 0, {0}}, {"n2", 1, {0}}}));
}

TEST_F(SchedulerTest, RanksSpreadOverSingleDeviceWorkersByDefault) {
  node("n1", 1, 1);
  node("n2", 1, 1);
  EXPECT_EQ(place(job("a", 2)).runs, (Runs{{"n1", 0, {0}}, {"n2", 1, {0}}}));
}

TEST_F(SchedulerTest, PrefersTheTightestNode) {
  node("n1", 8, 8);
  node("n2", 4, 3);
  node("n3", 2, 1);
  EXPECT_EQ(place(job("a", 2)).runs, (Runs{{"n2", 0, {0, 1}}}));
  EXPECT_EQ(place(job("b", 9)).runs, (Runs{{"n1", 0, first(8)}, {"n2", 8, {2}}}));
}

TEST_F(SchedulerTest, AllOrNothing) {
  node("n1", 2, 2);
  node("n2", 2, 1);
  const Outcome outcome = place(job("a", 4));
  EXPECT_THAT(outcome.runs, IsEmpty());
  EXPECT_EQ(outcome.reason, "INSUFFICIENT_DEVICES");
  EXPECT_EQ(outcome.message, "needs 4 cpu devices; 3 of 4 are free on 2 nodes");
}

TEST_F(SchedulerTest, SaysWhyAJobWaits) {
  EXPECT_EQ(place(job("a", 4, 2)).reason, "NO_NODES");
  scheduler_.set_node({"n1", "cpu", 1, "", true, /*cordoned=*/true});
  EXPECT_EQ(cycle()["a"].reason, "ALL_CORDONED");
  scheduler_.set_node({"n1", "cpu", 1, "", /*ready=*/false});
  EXPECT_EQ(cycle()["a"].message, "no worker node is ready; start titan-worker on a node");
  scheduler_.set_node({"n1", "cuda", 1});
  EXPECT_EQ(cycle()["a"].reason, "WRONG_DEVICE");
  node("n2", 2, 2);
  node("n3", 1, 1);
  EXPECT_EQ(cycle()["a"].reason, "RANKS_PER_NODE_UNSATISFIABLE");
  scheduler_.add_job(job("a", 4, 2));
  EXPECT_EQ(cycle()["a"].message, "needs 2 nodes with 2 cpu devices each; 1 of 2 nodes has that many");
  EXPECT_THAT(cycle(), IsEmpty()) << "reported once";
  PendingJob refusing = job("b", 1);
  refusing.refused = {"n2", "n3"};
  EXPECT_EQ(place(refusing).reason, "ALL_REFUSED");
  EXPECT_EQ(place(in_units(job("c", 4), 4)).reason, "INSUFFICIENT_DEVICES");
  EXPECT_EQ(place(in_units(job("d", 3), 3)).message,
            "needs 1 group of 3 cpu devices, each on one node; when idle, the nodes can hold 0");
  EXPECT_EQ(place(in_units(job("e", 3), 2)).message, "3 ranks cannot be divided into groups of 2");
}

// The reason states how many of the free devices the job can use.
TEST_F(SchedulerTest, ReportsHowManyFreeDevicesAreUsable) {
  node("n1", 4, 3);
  node("n2", 4, 3);
  EXPECT_EQ(place(job("fixed", 4, 4)).message,
            "needs 4 cpu devices; 6 of 8 are free on 2 nodes, and 0 of 1 node with 4 free");
  scheduler_.remove_job("fixed");
  EXPECT_EQ(place(in_units(job("cut", 6), 2)).message,
            "needs 6 cpu devices; 6 of 8 are free on 2 nodes, with space for 2 of 3 groups of 2");
}

// A node that failed a job is avoided as long as the others could hold the job, even if they are busy now.
TEST_F(SchedulerTest, AvoidsANodeWhileOthersCouldHoldTheJob) {
  PendingJob shy = job("a", 1);
  shy.avoided = {"n1"};
  node("n1", 4, 1);
  node("n2", 4, 4);
  EXPECT_EQ(place(shy).runs, (Runs{{"n2", 0, {0}}}));
  scheduler_.occupy("other", "n2", first(4));
  const Outcome waits = place(shy);
  EXPECT_THAT(waits.runs, IsEmpty());
  EXPECT_EQ(waits.message, "needs 1 cpu device; 0 of 4 are free on 1 node (avoided: n1)");
  scheduler_.remove_node("n2");
  EXPECT_EQ(cycle()["a"].runs, (Runs{{"n1", 0, {0}}})) << "no other node exists";
}

TEST_F(SchedulerTest, TakesAvoidedNodesLast) {
  PendingJob shy = job("a", 5);
  shy.avoided = {"n1"};
  node("n1", 4, 4);
  node("n2", 2, 2);
  node("n3", 2, 2);
  EXPECT_EQ(place(shy).runs, (Runs{{"n1", 0, {0}}, {"n2", 1, {0, 1}}, {"n3", 3, {0, 1}}}));
}

TEST_F(SchedulerTest, NeverUsesARefusedNode) {
  PendingJob proud = job("a", 1);
  proud.refused = {"n1"};
  node("n1", 4, 4);
  node("n2", 1, 0);
  EXPECT_EQ(place(proud).message, "needs 1 cpu device; 0 of 1 are free on 1 node (refused: n1)");
  scheduler_.release("on n2");
  EXPECT_EQ(cycle()["a"].runs, (Runs{{"n2", 0, {0}}}));
}

TEST_F(SchedulerTest, PriorityThenAge) {
  node("n1", 2, 2);
  scheduler_.add_job(job("new", 1, 0, 0, 2));
  scheduler_.add_job(job("old", 1, 0, 0, 1));
  scheduler_.add_job(job("urgent", 1, 0, 5, 3));
  const std::vector<Outcome> outcomes = scheduler_.cycle(kStart);
  ASSERT_THAT(outcomes, SizeIs(3));
  EXPECT_EQ(outcomes[0].uid, "urgent");
  EXPECT_EQ(outcomes[1].uid, "old");
  EXPECT_THAT(outcomes[1].runs, SizeIs(1));
  EXPECT_EQ(outcomes[2].uid, "new");
  EXPECT_THAT(outcomes[2].runs, IsEmpty());
}

// A large job collects nodes; smaller ones after it may only use those for which it does not wait.
TEST_F(SchedulerTest, ALargeJobIsNotStarved) {
  node("n1", 2, 1);
  node("n2", 2, 0);
  scheduler_.add_job(job("large", 4, 2, 0, 1));
  scheduler_.add_job(job("small", 1, 0, 0, 2));
  std::map<std::string, Outcome> outcomes = cycle();
  EXPECT_EQ(outcomes["large"].message, "needs 4 cpu devices; 1 of 4 is free on 2 nodes");
  EXPECT_EQ(outcomes["small"].reason, "BEHIND_IN_QUEUE");
  EXPECT_EQ(outcomes["small"].message, "needs 1 cpu device; 0 of 4 are free on 2 nodes; behind large in the queue");
  EXPECT_THAT(scheduler_.reservations(), ElementsAre(Reservation{"large", {"n1", "n2"}}));
  node("n3", 1, 1);
  EXPECT_EQ(cycle()["small"].runs, (Runs{{"n3", 0, {0}}}));
}

// Users who see one project may not see the other.
TEST_F(SchedulerTest, AJobOfAnotherProjectIsNotNamed) {
  node("n1", 2, 1);
  node("n2", 2, 0);
  scheduler_.add_job(job("projects/vision/jobs/large", 4, 2, 0, 1));
  scheduler_.add_job(job("projects/vision/jobs/own", 1, 0, 0, 2));
  scheduler_.add_job(job("projects/nlp/jobs/foreign", 1, 0, 0, 3));
  std::map<std::string, Outcome> outcomes = cycle();
  EXPECT_EQ(outcomes["projects/vision/jobs/own"].message,
            "needs 1 cpu device; 0 of 4 are free on 2 nodes; behind projects/vision/jobs/large in the queue");
  EXPECT_EQ(outcomes["projects/nlp/jobs/foreign"].reason, "BEHIND_IN_QUEUE");
  EXPECT_EQ(outcomes["projects/nlp/jobs/foreign"].message,
            "needs 1 cpu device; 0 of 4 are free on 2 nodes; behind a job of another project in the queue");
}

// Unlike the first waiting job, the second one reserves nothing.
TEST_F(SchedulerTest, OnlyTheFirstWaitingJobReservesNodes) {
  node("n1", 2, 1);
  node("n2", 2, 1);
  node("n3", 2, 1);
  scheduler_.add_job(job("first", 2, 2, 0, 1));
  scheduler_.add_job(job("second", 2, 2, 0, 2));
  scheduler_.add_job(job("small", 2, 1, 0, 3));
  const std::map<std::string, Outcome> outcomes = cycle();
  EXPECT_THAT(outcomes.at("small").runs, SizeIs(2));
  EXPECT_EQ(outcomes.at("second").reason, "BEHIND_IN_QUEUE");
}

// A job that can never run here does not block the others.
TEST_F(SchedulerTest, AnImpossibleJobBlocksNobody) {
  node("n1", 2, 2);
  scheduler_.add_job(job("huge", 64, 0, 9, 1));
  scheduler_.add_job(job("small", 1, 0, 0, 2));
  const std::map<std::string, Outcome> outcomes = cycle();
  EXPECT_EQ(outcomes.at("huge").reason, "INSUFFICIENT_DEVICES");
  EXPECT_THAT(outcomes.at("small").runs, SizeIs(1));
}

// volcano#5805: nodes that a gang lost or still has must not go to a filler.
TEST_F(SchedulerTest, ARecoveringGangComesFirstAndKeepsItsNodes) {
  node("n1", 1, 1);
  node("n3", 1, 1);
  scheduler_.add_job(job("filler", 1, 0, 0, 1));
  scheduler_.add_job(recovering(job("gang", 2, 1, 0, 5), {{"n1", {0}}}));
  const std::map<std::string, Outcome> outcomes = cycle();
  EXPECT_EQ(outcomes.at("gang").runs, (Runs{{"n1", 0, {0}}, {"n3", 1, {0}}}));
  EXPECT_THAT(outcomes.at("filler").runs, IsEmpty());
}

TEST_F(SchedulerTest, HigherPriorityFillerAvoidsTheGangsDevices) {
  node("n1", 1, 1);
  node("n3", 1, 1);
  scheduler_.add_job(job("filler", 1, 0, 9, 1));
  scheduler_.add_job(recovering(job("gang", 2, 1, 0, 5), {{"n1", {0}}}));
  std::map<std::string, Outcome> outcomes = cycle();
  EXPECT_EQ(outcomes["filler"].runs, (Runs{{"n3", 0, {0}}}));
  EXPECT_THAT(outcomes["gang"].runs, IsEmpty());
  scheduler_.release("filler");
  EXPECT_EQ(cycle()["gang"].runs, (Runs{{"n1", 0, {0}}, {"n3", 1, {0}}}));
}

TEST(OrderTest, RecoveringJobsMayComeBeforeHigherPriorities) {
  Scheduler scheduler(Order::kRecoveringFirst);
  scheduler.set_node({"n1", "cpu", 1});
  scheduler.set_node({"n3", "cpu", 1});
  scheduler.add_job(job("filler", 1, 0, 9, 1));
  scheduler.add_job(recovering(job("gang", 2, 1, 0, 5), {{"n1", {0}}}));
  const std::vector<Outcome> outcomes = scheduler.cycle(kStart);
  ASSERT_THAT(outcomes, SizeIs(2));
  EXPECT_EQ(outcomes[0], (Outcome{"gang", {{"n1", 0, {0}}, {"n3", 1, {0}}}, "", ""}));
  EXPECT_THAT(outcomes[1].runs, IsEmpty());
}

// Two gangs that each keep one node and miss another would wait for each other forever: the earlier gang takes the
// later one's node.
TEST_F(SchedulerTest, TwoRecoveringGangsDoNotBlockEachOther) {
  node("n1", 1, 1);
  node("n2", 1, 1);
  scheduler_.add_job(recovering(job("second", 2, 1, 0, 2), {{"n2", {0}}}));
  scheduler_.add_job(recovering(job("first", 2, 1, 0, 1), {{"n1", {0}}}));
  std::map<std::string, Outcome> outcomes = cycle();
  EXPECT_EQ(outcomes["first"].runs, (Runs{{"n1", 0, {0}}, {"n2", 1, {0}}}));
  EXPECT_THAT(outcomes["second"].runs, IsEmpty());
  scheduler_.release("first");
  EXPECT_EQ(cycle()["second"].runs, (Runs{{"n1", 0, {0}}, {"n2", 1, {0}}}));
}

// Among later gangs, the last ones give up their nodes first.
TEST_F(SchedulerTest, TakesNodesFromTheLastGangFirst) {
  for (const char* name : {"n1", "n2", "n3"}) node(name, 1, 1);
  scheduler_.add_job(recovering(job("a", 2, 1, 0, 1), {{"n1", {0}}}));
  scheduler_.add_job(recovering(job("b", 3, 1, 0, 2), {{"n2", {0}}}));
  scheduler_.add_job(recovering(job("c", 3, 1, 0, 3), {{"n3", {0}}}));
  EXPECT_EQ(cycle()["a"].runs, (Runs{{"n1", 0, {0}}, {"n3", 1, {0}}}));
}

// A job of higher priority and a gang that keeps the missing nodes must not wait for each other.
TEST_F(SchedulerTest, HigherPriorityAndRecoveringDoNotBlockEachOther) {
  node("n1", 1, 1);
  node("n2", 1, 1);
  scheduler_.add_job(job("urgent", 2, 1, 9, 7));
  scheduler_.add_job(recovering(job("gang", 2, 1, 0, 1), {{"n1", {0}}}));
  EXPECT_EQ(cycle()["urgent"].runs, (Runs{{"n1", 0, {0}}, {"n2", 1, {0}}}));
}

// One of the gang's nodes is cordoned: the devices that it keeps on other nodes are of no use to it, so any job that
// can run takes them, even a later one. A node that is only lost may return.
TEST_F(SchedulerTest, AGangThatCannotRunHoldsNothing) {
  node("n1", 2, 2);
  scheduler_.set_node({"n2", "cpu", 2, "", true, /*cordoned=*/true});
  scheduler_.add_job(recovering(job("gang", 2, 1, 0, 1), {{"n1", {0}}}));
  scheduler_.add_job(recovering(job("free", 2, 0, 0, 2), {{"n1", {1}}}));
  std::map<std::string, Outcome> outcomes = cycle();
  EXPECT_EQ(outcomes["free"].runs, (Runs{{"n1", 0, {0, 1}}}));
  EXPECT_THAT(outcomes["gang"].runs, IsEmpty());
  scheduler_.release("free");
  scheduler_.set_node({"n2", "cpu", 2, "", /*ready=*/false});
  EXPECT_THAT(place(job("other", 2, 0, 0, 3)).runs, IsEmpty()) << "n2 is back in service, and lost for a moment";
  scheduler_.set_node({"n2", "cpu", 2, "", true, /*cordoned=*/true});
  EXPECT_EQ(cycle()["other"].runs, (Runs{{"n1", 0, {0, 1}}}));
}

TEST_F(SchedulerTest, ARecoveringJobReturnsToItsDevices) {
  node("n1", 4, 4);
  node("n2", 4, 4);
  EXPECT_EQ(place(recovering(job("a", 2), {{"n2", {2, 3}}})).runs, (Runs{{"n2", 0, {2, 3}}}));
}

TEST_F(SchedulerTest, ReservedDevicesAreFreedWithTheJob) {
  node("n1", 2, 2);
  node("n2", 1, 0);
  scheduler_.add_job(recovering(job("gang", 3, 0, 0, 1), {{"n1", {1}}}));
  EXPECT_EQ(cycle()["gang"].message,
            "needs 3 cpu devices; 1 of 3 is free on 2 nodes; 1 is reserved for recovering jobs");
  EXPECT_THAT(scheduler_.free_devices("n1"), ElementsAre(0));
  scheduler_.remove_job("gang");
  EXPECT_THAT(scheduler_.free_devices("n1"), ElementsAre(0, 1));
}

TEST_F(SchedulerTest, CordonedNodeGetsNoNewRanks) {
  scheduler_.set_node({"n1", "cpu", 2, "", true, /*cordoned=*/true});
  node("n2", 1, 1);
  EXPECT_EQ(place(recovering(job("a", 1), {{"n1", {0}}})).runs, (Runs{{"n2", 0, {0}}}));
}

// Tensor groups are consecutive ranks and are not split: 3 + 5 would use as many nodes.
TEST_F(SchedulerTest, UnitsStayOnOneNode) {
  node("n1", 8, 5);
  node("n2", 8, 5);
  node("n3", 8, 3);
  EXPECT_EQ(place(in_units(job("a", 8), 2)).runs, (Runs{{"n1", 0, first(4)}, {"n2", 4, first(4)}}));
  EXPECT_THAT(place(in_units(job("b", 4), 4)).runs, IsEmpty());
}

TEST_F(SchedulerTest, RanksPerNodeOverridesTheUnit) {
  node("n1", 1, 1);
  node("n2", 1, 1);
  EXPECT_EQ(place(in_units(job("a", 2, 1), 2)).runs, (Runs{{"n1", 0, {0}}, {"n2", 1, {0}}}));
}

TEST_F(SchedulerTest, UsesOneDomainIfItHasCapacity) {
  node("n1", 8, 8, "rack1");
  for (int i = 2; i <= 4; ++i) node(absl::StrCat("n", i), 8, 8, "rack2");
  for (int i = 5; i <= 6; ++i) node(absl::StrCat("n", i), 8, 8, "rack3");
  EXPECT_THAT(nodes_of(place(job("pair", 16)).runs), ElementsAre("n5", "n6")) << "the domain with the least left over";
  EXPECT_THAT(nodes_of(place(job("fixed", 24, 8)).runs), ElementsAre("n2", "n3", "n4"));
}

TEST_F(SchedulerTest, PartOfANodeIsTakenInTheSameDomain) {
  node("n1", 8, 8, "rack1");
  node("n2", 8, 4, "rack2");
  node("n3", 8, 8, "rack3");
  node("n4", 8, 5, "rack3");
  EXPECT_EQ(place(job("a", 12)).runs, (Runs{{"n3", 0, first(8)}, {"n4", 8, first(4)}}));
}

TEST_F(SchedulerTest, UsesTheFewestDomainsInRankOrder) {
  node("n1", 8, 8, "rack1");
  for (int i = 2; i <= 10; ++i) node(absl::StrCat("n", i), 8, 8, absl::StrCat("rack", i <= 4 ? 2 : i <= 6 ? 10 : 3));
  // rack3: n7-n10, rack2: n2-n4, rack10: n5, n6.
  EXPECT_THAT(nodes_of(place(job("a", 40, 8)).runs), ElementsAre("n1", "n7", "n8", "n9", "n10"));
  EXPECT_THAT(nodes_of(place(job("b", 40, 8)).runs), ElementsAre("n2", "n3", "n4", "n5", "n6"));
}

// Chooses the lowest switch with enough nodes: a rack, else a row, else the rows with the most.
TEST_F(SchedulerTest, UsesTheDeepestDomainWithCapacity) {
  const std::map<std::string, int> racks = {{"row1/rack1", 2}, {"row1/rack2", 2}, {"row2/rack3", 1},
                                            {"row2/rack4", 3}, {"row2/rack5", 1}, {"row3/rack6", 2}};
  for (const auto& [rack, nodes] : racks) {
    for (int i = 1; i <= nodes; ++i) node(absl::StrCat(rack.substr(5), "-", i), 8, 8, rack);
  }
  const auto place_and_end = [&](int nodes) {
    const Outcome outcome = place(job("a", 8 * nodes, 8));
    scheduler_.release("a");
    return nodes_of(outcome.runs);
  };
  EXPECT_THAT(place_and_end(3), ElementsAre("rack4-1", "rack4-2", "rack4-3"));
  EXPECT_THAT(place_and_end(4), ElementsAre("rack1-1", "rack1-2", "rack2-1", "rack2-2")) << "the row that this fills";
  EXPECT_THAT(place_and_end(5), ElementsAre("rack3-1", "rack4-1", "rack4-2", "rack4-3", "rack5-1"));
  EXPECT_THAT(place_and_end(7),
              ElementsAre("rack3-1", "rack4-1", "rack4-2", "rack4-3", "rack5-1", "rack6-1", "rack6-2"))
      << "all of one row, and the smallest other row that holds the rest";
  EXPECT_THAT(place_and_end(11), SizeIs(11));
}

TEST_F(SchedulerTest, ClaimsMayPrecedeAndOutliveTheirNode) {
  scheduler_.occupy("stray", "n1", {0, 7});
  scheduler_.add_job(job("a", 2));
  node("n1", 2, 2);
  EXPECT_THAT(cycle()["a"].runs, IsEmpty());
  scheduler_.remove_node("n1");
  node("n1", 2, 2);
  EXPECT_THAT(scheduler_.free_devices("n1"), ElementsAre(1));
  scheduler_.release("stray", "n1");
  EXPECT_THAT(cycle()["a"].runs, SizeIs(1));
}

// A device is free once the last of its owners releases it.
TEST_F(SchedulerTest, DeviceWithTwoOwnersIsFreedByTheLast) {
  node("n1", 1, 1);
  scheduler_.occupy("stray", "n1", {0});
  scheduler_.occupy("attempt", "n1", {0});
  scheduler_.release("attempt");
  EXPECT_THAT(place(job("a", 1)).runs, IsEmpty());
  scheduler_.release("stray");
  EXPECT_THAT(cycle()["a"].runs, SizeIs(1));
}

TEST_F(SchedulerTest, KindsOfDevicesDoNotWaitForEachOther) {
  node("n1", 2, 1);
  scheduler_.set_node({"g1", "cuda", 1});
  scheduler_.add_job(job("large", 2, 0, 9, 1));
  PendingJob cuda = job("gpu", 1, 0, 0, 2);
  cuda.device = "cuda";
  EXPECT_EQ(place(cuda).runs, (Runs{{"g1", 0, {0}}}));
}

TEST_F(SchedulerTest, CyclesStayWithinTheirLimits) {
  node("n1", 8, 8);
  for (int i = 0; i < 8; ++i) scheduler_.add_job(job(absl::StrCat("j", i), 1, 0, 0, i));
  EXPECT_THAT(scheduler_.cycle(kStart, {.placements = 3, .reasons = 30}), SizeIs(3));
  EXPECT_TRUE(scheduler_.has_work());
  EXPECT_THAT(scheduler_.cycle(kStart, {.placements = 5, .reasons = 30}), SizeIs(5));
  EXPECT_FALSE(scheduler_.has_work());
}

// Each job gets its reason in bounded time, and again when it changes.
TEST_F(SchedulerTest, EveryJobEventuallyGetsItsReason) {
  node("n1", 4, 0);
  for (int i = 0; i < 100; ++i) scheduler_.add_job(job(absl::StrCat("j", i), 4, 0, 0, i));
  const auto collect_reasons = [&] {
    std::set<std::string> reported;
    for (int i = 0; i < 200 && scheduler_.has_work(); ++i) {
      const std::vector<Outcome> outcomes = scheduler_.cycle(kStart, {.placements = 10, .reasons = 9});
      EXPECT_LE(outcomes.size(), 9);
      for (const Outcome& outcome : outcomes) reported.insert(outcome.uid);
    }
    return reported;
  };
  EXPECT_THAT(collect_reasons(), SizeIs(100));
  EXPECT_FALSE(scheduler_.has_work());
  node("n2", 4, 1);
  EXPECT_THAT(collect_reasons(), SizeIs(100));
}

class BackfillTest : public SchedulerTest {
 protected:
  // Two nodes of two devices; n1 is half free, and the running jobs end after 60 and 100 s.
  void SetUp() override {
    scheduler_.set_node({"n1", "cpu", 2});
    scheduler_.set_node({"n2", "cpu", 2});
    scheduler_.occupy("short", "n1", {1}, kStart + absl::Seconds(60));
    scheduler_.occupy("long", "n2", {0, 1}, kStart + absl::Seconds(100));
    scheduler_.add_job(job("large", 4, 2, 0, 1));
    cycle();
  }
};

TEST_F(BackfillTest, JobsThatEndInTimeRunOnReservedNodes) {
  EXPECT_THAT(scheduler_.reservations(), ElementsAre(Reservation{"large", {"n1", "n2"}, kStart + absl::Seconds(100)}));
  EXPECT_THAT(place(limited(job("late", 1, 0, 0, 2), absl::Seconds(101))).runs, IsEmpty());
  EXPECT_THAT(place(job("endless", 1, 0, 0, 3)).runs, IsEmpty());
  EXPECT_EQ(place(limited(job("quick", 1, 0, 0, 4), absl::Seconds(100))).runs, (Runs{{"n1", 0, {0}}}));
}

TEST_F(BackfillTest, NoBackfillAfterTheShadowTime) {
  scheduler_.add_job(limited(job("quick", 1, 0, 0, 4), absl::Seconds(5)));
  EXPECT_EQ(cycle(absl::Seconds(96))["quick"].reason, "BEHIND_IN_QUEUE");
  scheduler_.release("short");
  const std::map<std::string, Outcome> outstayed = cycle(absl::Seconds(200));
  EXPECT_EQ(outstayed.at("large").message, "needs 4 cpu devices; 2 of 4 are free on 2 nodes");
  EXPECT_FALSE(outstayed.contains("quick"));
  scheduler_.release("long");
  EXPECT_THAT(cycle(absl::Seconds(300))["large"].runs, SizeIs(2));
}

// An end that becomes known later or moves earlier takes effect from then on; a later one changes nothing.
TEST_F(BackfillTest, EndLearnedLaterGivesAShadowTime) {
  scheduler_.release("short");
  scheduler_.release("long");
  scheduler_.remove_job("large");
  scheduler_.occupy("endless", "n1", {1});
  scheduler_.add_job(job("large", 4, 2, 0, 1));
  scheduler_.add_job(limited(job("quick", 1, 0, 0, 4), absl::Seconds(30)));
  EXPECT_THAT(cycle()["quick"].runs, IsEmpty());
  scheduler_.occupy("endless", "n1", {}, kStart + absl::Seconds(40));
  EXPECT_TRUE(scheduler_.has_work());
  EXPECT_THAT(cycle()["quick"].runs, SizeIs(1));
  EXPECT_EQ(scheduler_.reservations()[0].shadow, kStart + absl::Seconds(40));
  scheduler_.occupy("endless", "n1", {}, kStart + absl::Seconds(90));
  EXPECT_THAT(place(limited(job("slow", 1, 0, 0, 5), absl::Seconds(50))).runs, IsEmpty());
  EXPECT_EQ(scheduler_.reservations()[0].shadow, kStart + absl::Seconds(40)) << "it never moves back";
}

TEST_F(BackfillTest, IdleNodeReplacesABusyOneInTheReservation) {
  node("n3", 2, 2);
  cycle();
  EXPECT_THAT(scheduler_.reservations(), ElementsAre(Reservation{"large", {"n1", "n3"}, kStart + absl::Seconds(60)}));
  EXPECT_THAT(place(job("small", 1, 0, 0, 2)).runs, IsEmpty());
  scheduler_.release("short");
  EXPECT_THAT(nodes_of(cycle()["large"].runs), ElementsAre("n1", "n3"));
}

TEST_F(BackfillTest, ReservationIsRemadeWhenANodeIsLost) {
  node("n3", 2, 0);
  scheduler_.set_node({"n1", "cpu", 2, "", /*ready=*/false});
  cycle();
  EXPECT_THAT(scheduler_.reservations(), ElementsAre(Reservation{"large", {"n2", "n3"}}));
}

TEST_F(BackfillTest, HigherPriorityJobTakesTheReservation) {
  const Outcome urgent = place(job("urgent", 4, 0, 1, 9));
  EXPECT_EQ(urgent.reason, "INSUFFICIENT_DEVICES");
  EXPECT_EQ(scheduler_.reservations()[0].uid, "urgent");
  EXPECT_THAT(place(job("tiny", 1, 0, 2, 10)).runs, SizeIs(1))
      << "a job of even higher priority runs on the reserved node";
}

// An endless stream of small jobs, more than the cluster can take: once the large job is the first to wait, it starts
// when the jobs that run by then have ended.
TEST(StarvationTest, ALargeJobStartsInBoundedTime) {
  for (const bool limits : {false, true}) {
    Scheduler scheduler;
    constexpr int kNodes = 20, kMaxLength = 17;
    for (int i = 0; i < kNodes; ++i) scheduler.set_node({absl::StrCat("n", i), "cpu", 4});
    std::multimap<int, std::string> ends;
    int64_t submitted = 0;
    int promised = -1, started = -1;
    for (int time = 0; time < 300 && started < 0; ++time) {
      while (!ends.empty() && ends.begin()->first <= time) {
        scheduler.release(ends.begin()->second);
        ends.erase(ends.begin());
      }
      if (time == 50) scheduler.add_job(job("large", 64, 4, 0, ++submitted));
      while (scheduler.num_waiting() < 60) {
        ++submitted;
        PendingJob small = job(absl::StrCat("s", submitted), 1 + submitted % 3, 0, 0, submitted);
        if (limits) small.time_limit = absl::Seconds(1 + submitted % kMaxLength);
        scheduler.add_job(small);
      }
      for (const Outcome& outcome : scheduler.cycle(kStart + absl::Seconds(time))) {
        if (outcome.runs.empty()) continue;
        if (outcome.uid == "large") {
          started = time;
          break;
        }
        ends.emplace(time + 1 + std::stoll(outcome.uid.substr(1)) % kMaxLength, outcome.uid);
      }
      for (const Reservation& reservation : scheduler.reservations()) {
        if (promised < 0 && reservation.uid == "large") promised = time;
      }
    }
    EXPECT_GT(promised, 50);
    EXPECT_GT(started, promised);
    EXPECT_LE(started, promised + kMaxLength) << (limits ? "with limits" : "without");
  }
}

// Whether a job could ever run is judged as if all nodes were idle: nodes that are busy, cordoned or away now may be
// free tomorrow.
TEST_F(SchedulerTest, MisfitDependsOnNodesNotOnTheirLoad) {
  EXPECT_EQ(scheduler_.misfit(job("a", 1))->reason, "NO_NODES");
  scheduler_.set_node({"n1", "cpu", 2, "", /*ready=*/false, /*cordoned=*/true});
  scheduler_.set_node({"n2", "cpu", 2, "", /*ready=*/true, /*cordoned=*/false});
  scheduler_.occupy("x", "n2", {0, 1});
  EXPECT_FALSE(scheduler_.misfit(job("a", 4, 2)));
  EXPECT_FALSE(scheduler_.misfit(job("a", 4)));
  EXPECT_FALSE(scheduler_.misfit(in_units(job("a", 4), 2)));
  EXPECT_EQ(scheduler_.misfit(job("a", 4, 1))->reason, "RANKS_PER_NODE_UNSATISFIABLE");
  EXPECT_EQ(scheduler_.misfit(job("a", 4, 1))->message,
            "needs 4 nodes with 1 cpu device each; 2 of 2 nodes have that many, and the largest has 2; "
            "resources.ranks_per_node = 0 leaves the placement to the scheduler");
  EXPECT_EQ(scheduler_.misfit(job("a", 5))->message,
            "needs 5 cpu devices, and all 2 nodes together have 4; use fewer ranks or add nodes");
  EXPECT_EQ(scheduler_.misfit(in_units(job("a", 4), 4))->reason, "UNIT_UNSATISFIABLE");
  PendingJob cuda = job("a", 1);
  cuda.device = "cuda";
  EXPECT_EQ(scheduler_.misfit(cuda)->reason, "WRONG_DEVICE");
}

}  // namespace
}  // namespace titan::scheduler
