// A controller that starts with damaged records serves everything else, and no job runs twice.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::HasSubstr;

class DamageTest : public ::testing::Test, protected World {
 protected:
  void SetUp() override {
    add_node("n1");
    add_node("n2");
    ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
    ASSERT_TRUE(submit(spec("b", 1, 1)).ok());
    train("a", 3);
    train("b", 3);
    uid_ = job("a")->record->uid;
  }
  // Restarts the controller with the record changed; then its nodes report their attempts, and a minute passes.
  void damage(const std::string& key, const std::string& value = "{\"uid\":") {
    std::vector<store::Record> records = copy_store();
    const auto it =
        std::find_if(records.begin(), records.end(), [&](const store::Record& record) { return record.key == key; });
    ASSERT_NE(it, records.end()) << key;
    it->value = value;
    crash_to(records);
    connect_all();
    advance(absl::Seconds(60));
  }
  // Counts the attempts that run on the nodes, by job.
  std::map<std::string, int> running() {
    std::map<std::string, int> found;
    for (const auto& [name, node] : nodes) {
      for (const auto& [key, attempt] : node.attempts) {
        if (attempt.phase == v1::AttemptReport::STARTED) ++found[key.first];
      }
    }
    return found;
  }
  int commands(v1::ControllerMessage::KindCase kind) { return nodes.at("n1").count(kind) + nodes.at("n2").count(kind); }
  void expect_unknown_and_left_alone() {
    EXPECT_EQ(job("a"), nullptr);
    EXPECT_EQ(state("b"), "RUNNING");
    EXPECT_EQ(running(), (std::map<std::string, int>{{uid_, 1}, {job("b")->record->uid, 1}}));
    EXPECT_EQ(commands(v1::ControllerMessage::kPrepare), 2);  // Those before the restart.
    EXPECT_EQ(commands(v1::ControllerMessage::kStop), 0);
    size_t unknown = 0;
    for (const NodeView& view : reconciler->nodes()) unknown += view.unknown.size();
    EXPECT_EQ(unknown, 1u);
  }
  std::vector<std::string> quarantined_keys() {
    std::vector<std::string> keys;
    for (const store::Quarantined& record : store.quarantined()) keys.push_back(record.key);
    return keys;
  }

  std::string uid_;
};

TEST_F(DamageTest, RanksOfAJobWhoseRecordIsDamagedAreLeftAlone) {
  damage(job_key(uid_));
  expect_unknown_and_left_alone();
  EXPECT_THAT(quarantined_keys(), ::testing::ElementsAre(job_key(uid_)));
  crash();
  connect_all();
  advance(absl::Seconds(60));
  expect_unknown_and_left_alone();
}

// The job's record says that it runs, but not where: nothing proves that its ranks are gone.
TEST_F(DamageTest, AJobWhoseNewestAttemptIsDamagedIsNotStartedAgain) {
  damage(attempt_key(uid_, 1));
  expect_unknown_and_left_alone();
  EXPECT_THAT(quarantined_keys(), ::testing::UnorderedElementsAre(job_key(uid_), attempt_key(uid_, 1)));
  for (const store::Quarantined& record : store.quarantined()) {
    EXPECT_THAT(record.reason, HasSubstr(record.key == job_key(uid_) ? "its attempt 1 cannot be read" : "parse"));
  }
  crash();
  connect_all();
  advance(absl::Seconds(60));
  expect_unknown_and_left_alone();
}

TEST_F(DamageTest, MissingAttemptCountsAsDamaged) {
  std::vector<store::Record> records = copy_store();
  std::erase_if(records, [&](const store::Record& record) { return record.key == attempt_key(uid_, 1); });
  crash_to(records);
  connect_all();
  advance(absl::Seconds(60));
  expect_unknown_and_left_alone();
}

// If a finished attempt is damaged, only history is lost.
TEST_F(DamageTest, DamagedOlderAttemptLosesOnlyHistory) {
  const FakeNode::Key first = key("a");
  exit_rank(nodes.at(nodes.at("n1").attempts.count(first) > 0 ? "n1" : "n2"), first, 0, -1, 9);
  settle();
  ASSERT_EQ(key("a").second, 2);
  loaded("a", 3);
  train("a", 5);
  damage(attempt_key(uid_, 1));
  EXPECT_EQ(state("a"), "RUNNING");
  ASSERT_EQ(job("a")->attempts.size(), 1u);
  EXPECT_EQ(job("a")->attempts[0]->number, 2);
  EXPECT_EQ(running()[uid_], 1);
}

TEST_F(DamageTest, DamagedProgressAndCursorsStartAgain) {
  damage(progress_key(uid_), "[]");
  EXPECT_EQ(state("a"), "RUNNING");
  damage(cursor_key(uid_, 1, 0), "x");
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(running()[uid_], 1);
  train("a", 9);
  EXPECT_EQ(job("a")->progress.step, 9);
}

// The node stays registered and its ranks are waited for, but it gets no new ones until an operator has looked.
TEST_F(DamageTest, ADamagedNodeIsCordoned) {
  damage(node_key("n1"));
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(state("b"), "RUNNING");
  for (const NodeView& view : reconciler->nodes()) {
    EXPECT_EQ(view.node.record.cordoned, view.node.record.name == "n1");
    EXPECT_EQ(view.node.record.devices, 1);  // From its registration.
  }
  destroy(nodes.at("n1"));
  advance(absl::Seconds(120));
  EXPECT_NE(state("a") == "RUNNING", state("b") == "RUNNING");  // The loss of the node is noticed.
}

TEST_F(DamageTest, DamagedNodeThatNeverReturnsIsLost) {
  destroy(nodes.at("n1"));
  std::vector<store::Record> records = copy_store();
  for (store::Record& record : records) {
    if (record.key == node_key("n1")) record.value = "?";
  }
  crash_to(records);
  connect(nodes.at("n2"));
  advance(absl::Seconds(120));
  EXPECT_NE(state("a") == "RUNNING", state("b") == "RUNNING");
}

// A node or a dump folder may have raised the attempt number, which then has no attempt record: that is not damage.
TEST_F(DamageTest, RaisedAttemptNumberIsNotDamage) {
  std::vector<store::Record> records = copy_store();
  for (store::Record& record : records) {
    if (record.key != job_key(uid_)) continue;
    job::JobRecord raised = *job::decode<job::JobRecord>(record.value);
    raised.attempts = 7;
    raised.state = job::JobState::kRecovering;
    record.value = job::encode(raised);
  }
  for (store::Record& record : records) {
    if (record.key != attempt_key(uid_, 1)) continue;
    job::AttemptRecord ended = *job::decode<job::AttemptRecord>(record.value);
    ended.end_time_ns = 1;
    record.value = job::encode(ended);
  }
  crash_to(records);
  ASSERT_NE(job("a"), nullptr);
  connect_all();
  advance(absl::Seconds(5));
  EXPECT_EQ(job("a")->attempts.back()->number, 8);
}

}  // namespace
}  // namespace titan::reconcile
