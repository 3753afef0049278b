// Tests which devices an attempt gets and keeps, and what a restarted controller knows about them.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using Devices = std::vector<int>;
using Labels = std::map<std::string, std::string>;
using Placements = std::vector<job::Placement>;

class PlacementTest : public ::testing::Test, protected World {
 protected:
  job::SchedulingSpec gang(const std::string& id, int ranks, int tensor = 1, int priority = 0) {
    job::SchedulingSpec wanted = spec(id, ranks, 0);
    wanted.priority = priority;
    if (tensor > 1) wanted.mesh["tp"] = tensor;
    return wanted;
  }
  job::SchedulingSpec on_gpus(job::SchedulingSpec wanted) {
    wanted.device = "cuda";
    return wanted;
  }
  // Returns the devices of the newest attempt on the node.
  Devices devices(const std::string& id, const std::string& node) {
    for (const job::Placement& placement : job(id)->attempts.back()->placements) {
      if (placement.node == node) return placement.devices;
    }
    return {};
  }
  Placements placements(const std::string& id) { return job(id)->attempts.back()->placements; }
  void kill(const std::string& id, const std::string& node, int rank) {
    exit_rank(nodes.at(node), key(id), rank, -1, 9);
    settle();
  }
  // Returns the records without devices, like those of adopted attempts that did not report them.
  std::vector<store::Record> without_devices() {
    std::vector<store::Record> records = copy_store();
    for (store::Record& record : records) {
      if (record.key.rfind("attempt/", 0) != 0) continue;
      nlohmann::json json = nlohmann::json::parse(record.value);
      for (nlohmann::json& placement : json["placements"]) placement.erase("devices");
      record.value = json.dump();
    }
    return records;
  }
};

TEST_F(PlacementTest, EveryRankHasADeviceThatItsNodeKnows) {
  add_node("n1", 4);
  ASSERT_TRUE(submit(gang("a", 1)).ok());
  ASSERT_TRUE(submit(gang("b", 2)).ok());
  EXPECT_EQ(devices("a", "n1"), Devices{0});
  EXPECT_EQ(devices("b", "n1"), (Devices{1, 2}));
  EXPECT_EQ(nodes.at("n1").attempts.at(key("b")).devices, (Devices{1, 2}));
  finish_all("a");
  ASSERT_TRUE(submit(gang("c", 2)).ok());
  EXPECT_EQ(devices("c", "n1"), (Devices{0, 3}));
}

TEST_F(PlacementTest, ATensorGroupNeverCrossesANode) {
  add_node("n1", 3, "cuda");
  add_node("n2", 5, "cuda");
  ASSERT_TRUE(submit(on_gpus(gang("a", 8, 4))).ok());
  EXPECT_EQ(state("a"), "QUEUED");
  EXPECT_EQ(job("a")->pending_reason, "UNIT_UNSATISFIABLE");
  EXPECT_EQ(reconciler->misfit(on_gpus(gang("x", 8, 4)))->reason, "UNIT_UNSATISFIABLE");
  add_node("n3", 4, "cuda");
  EXPECT_EQ(placements("a"), (Placements{{"n2", 0, 4}, {"n3", 4, 4}}));
}

// CPU slots of two hosts are as good as those of one.
TEST_F(PlacementTest, TensorGroupsMaySpanCpuNodes) {
  add_node("n1", 3);
  add_node("n2", 5);
  ASSERT_TRUE(submit(gang("a", 8, 4)).ok());
  EXPECT_EQ(placements("a"), (Placements{{"n1", 0, 3}, {"n2", 3, 5}}));
}

TEST_F(PlacementTest, GangStaysInARackWithFreeDevices) {
  add_node("n1", 1, "cpu", {{"row", "a"}, {"rack", "1"}});
  add_node("n2", 1, "cpu", {{"row", "a"}, {"rack", "2"}});
  add_node("n3", 1, "cpu", {{"row", "b"}, {"rack", "2"}});
  add_node("n4", 1, "cpu", {{"row", "a"}, {"rack", "2"}, {"colour", "green"}});
  ASSERT_TRUE(submit(spec("a")).ok());
  EXPECT_EQ(placements("a"), (Placements{{"n2", 0, 1}, {"n4", 1, 1}}));
  EXPECT_EQ(reconciler->node("n3")->node.record.labels, (Labels{{"row", "b"}, {"rack", "2"}}));
}

TEST_F(PlacementTest, LabelsSurviveTheController) {
  add_node("n1", 2, "cpu", {{"rack", "1"}});
  crash();
  EXPECT_EQ(reconciler->node("n1")->node.record.labels, (Labels{{"rack", "1"}}));
}

TEST_F(PlacementTest, ARecoveringGangReturnsToItsDevices) {
  add_node("n1", 4);
  ASSERT_TRUE(submit(gang("a", 2)).ok());
  ASSERT_TRUE(submit(gang("b", 2)).ok());
  loaded("b", 0);
  kill("b", "n1", 0);
  EXPECT_EQ(devices("b", "n1"), (Devices{2, 3})) << "immediately";
  finish_all("a");
  kill("b", "n1", 0);
  ASSERT_EQ(job("b")->pending_reason, "BACKOFF");
  ASSERT_TRUE(submit(gang("urgent", 1, 1, /*priority=*/5)).ok());
  EXPECT_EQ(devices("urgent", "n1"), Devices{0});
  crash();
  connect_all();
  advance(absl::Seconds(3));
  ASSERT_EQ(job("b")->attempts.size(), 3u);
  EXPECT_EQ(devices("b", "n1"), (Devices{2, 3})) << "also after its backoff, and a restart of the controller";
}

// Priority comes first, then recovering jobs.
TEST_F(PlacementTest, AHigherPriorityComesBeforeAJobThatRecovers) {
  add_node("n1", 1);
  add_node("n2", 1);
  ASSERT_TRUE(submit(spec("a")).ok());
  loaded("a", 0);
  job::SchedulingSpec urgent = spec("urgent");
  urgent.priority = 1;
  ASSERT_TRUE(submit(urgent).ok());
  ASSERT_TRUE(submit(spec("same")).ok());
  kill("a", "n1", 0);
  EXPECT_EQ(state("urgent"), "STARTING");
  EXPECT_EQ(state("a"), "RECOVERING");
  finish_all("urgent");
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(state("same"), "QUEUED");
}

class GraceTest : public PlacementTest {
 protected:
  // The gang has lost a node and keeps the other one.
  void SetUp() override {
    add_node("n1");
    add_node("n2");
    ASSERT_TRUE(submit(spec("a")).ok());
    loaded("a", 0);
    train("a", 1);
    destroy(nodes.at("n2"));
    kill("a", "n1", 0);
    advance(absl::Seconds(6));
    ASSERT_EQ(state("a"), "RECOVERING");
    ASSERT_EQ(job("a")->record->reserved.count("n1"), 1u);
    ASSERT_TRUE(submit(spec("filler", 1, 0)).ok());
  }
};

TEST_F(GraceTest, NodeThatNeverReturnsBlocksNobody) {
  advance(absl::Seconds(50));
  EXPECT_EQ(state("filler"), "QUEUED");
  advance(absl::Seconds(20));
  EXPECT_EQ(placements("filler"), (Placements{{"n1", 0, 1}}));
  EXPECT_TRUE(job("a")->record->reserved.empty());
  EXPECT_EQ(count_events("a", "ReservationGivenUp"), 1);
  const auto stored = store.get(job_key(job("a")->record->uid));
  ASSERT_TRUE(stored.ok());
  EXPECT_TRUE(job::decode<job::JobRecord>((*stored)->value)->reserved.empty()) << "durable";
  add_node("n3");
  add_node("n4");
  advance(absl::Seconds(1));
  EXPECT_EQ(placements("a"), (Placements{{"n3", 0, 1}, {"n4", 1, 1}}));
}

TEST_F(GraceTest, GangResumesOnANodeThatReturnsInTime) {
  advance(absl::Seconds(30));
  connect(nodes.at("n2"));
  advance(absl::Seconds(1));
  EXPECT_EQ(placements("a"), (Placements{{"n1", 0, 1}, {"n2", 1, 1}}));
  advance(absl::Seconds(60));
  EXPECT_EQ(count_events("a", "ReservationGivenUp"), 0);
}

TEST_F(GraceTest, RestartedControllerKeepsReservationsForOneGrace) {
  advance(absl::Seconds(50));
  crash();
  connect(nodes.at("n1"));
  advance(absl::Seconds(30));
  EXPECT_EQ(state("filler"), "QUEUED");
  advance(absl::Seconds(40));
  EXPECT_EQ(state("filler"), "STARTING");
}

// A node runs ranks that this controller does not know.
class StrayTest : public PlacementTest {
 protected:
  FakeNode& with_stray(int count, const Devices& used, bool with_indices) {
    FakeNode& node = nodes.emplace("n1", FakeNode("n1", count)).first->second;
    node.reports_devices = with_indices;
    FakeNode::Attempt& attempt = node.attempts[stray_];
    attempt.phase = v1::AttemptReport::STARTED;
    for (size_t i = 0; i < used.size(); ++i) attempt.ranks.push_back(static_cast<int>(i));
    attempt.devices = used;
    connect(node);
    return node;
  }
  const FakeNode::Key stray_{"somebody", 1};
};

TEST_F(StrayTest, DevicesOfAStrayAreNotAllocated) {
  FakeNode& node = with_stray(4, {0, 2}, /*with_indices=*/true);
  ASSERT_TRUE(submit(gang("a", 2)).ok());
  ASSERT_TRUE(submit(gang("b", 1)).ok());
  EXPECT_EQ(devices("a", "n1"), (Devices{1, 3}));
  EXPECT_EQ(state("b"), "QUEUED");
  exit_rank(node, stray_, 0, 0, 0);
  exit_rank(node, stray_, 1, 0, 0);
  advance(absl::Seconds(1));
  EXPECT_EQ(devices("b", "n1"), Devices{0});
}

// If a worker reports only how many devices unknown ranks use, the controller leaves that many free, whichever they
// are.
TEST_F(StrayTest, OlderWorkersReportOnlyTheNumberOfDevices) {
  FakeNode& node = with_stray(2, {}, /*with_indices=*/false);
  node.attempts.at(stray_).ranks = {0};
  connect(node);
  ASSERT_TRUE(submit(gang("a", 1)).ok());
  ASSERT_TRUE(submit(gang("b", 1)).ok());
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(state("b"), "QUEUED");
}

TEST_F(PlacementTest, RestartedControllerAllocatesNoDeviceTwice) {
  add_node("n1", 2);
  ASSERT_TRUE(submit(gang("a", 2)).ok());
  loaded("a", 0);
  ASSERT_TRUE(submit(gang("b", 1)).ok());
  ASSERT_TRUE(submit(gang("c", 1)).ok());
  crash();
  connect_all();
  advance(absl::Seconds(10));
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  EXPECT_EQ(state("b"), "QUEUED");
  EXPECT_EQ(job("b")->pending_reason, "INSUFFICIENT_DEVICES");
  finish_all("a");
  EXPECT_EQ(devices("b", "n1"), Devices{0});
  EXPECT_EQ(devices("c", "n1"), Devices{1});
}

// The node reports the devices of its ranks; until then the controller assumes some.
TEST_F(PlacementTest, RecordsWithoutDevicesLoad) {
  add_node("n1", 4);
  ASSERT_TRUE(submit(gang("first", 1)).ok());
  ASSERT_TRUE(submit(gang("a", 2)).ok());
  loaded("a", 0);
  finish_all("first");
  crash_to(without_devices());
  EXPECT_EQ(devices("a", "n1"), Devices{});
  connect_all();
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  ASSERT_TRUE(submit(gang("b", 2)).ok());
  EXPECT_EQ(devices("b", "n1"), (Devices{0, 3}));
  kill("a", "n1", 0);
  EXPECT_EQ(devices("a", "n1"), (Devices{1, 2}));
}

TEST_F(PlacementTest, RecordsAndWorkerWithoutDeviceIndices) {
  FakeNode& node = add_node("n1", 3);
  ASSERT_TRUE(submit(gang("a", 2)).ok());
  loaded("a", 0);
  const auto records = without_devices();
  node.reports_devices = false;
  crash_to(records);
  connect_all();
  ASSERT_TRUE(submit(gang("b", 1)).ok());
  ASSERT_TRUE(submit(gang("c", 1)).ok());
  EXPECT_EQ(state("b"), "STARTING");
  EXPECT_EQ(state("c"), "QUEUED");
}

TEST_F(PlacementTest, AttemptRecordsItsWorldAndMesh) {
  add_node("n1", 4);
  ASSERT_TRUE(submit(gang("a", 4, 2)).ok());
  EXPECT_EQ(job("a")->attempts.back()->ranks, 4);
  EXPECT_EQ(job("a")->attempts.back()->mesh, (std::map<std::string, int>{{"tp", 2}}));
  EXPECT_EQ(job("a")->attempts.back()->config_version, 1);
}

}  // namespace
}  // namespace titan::reconcile
