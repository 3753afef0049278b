// Deletion of jobs: only of finished ones, durably, with all their records.

#include "common/service/rpc/error.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class DeletionTest : public ::testing::Test, protected World {
 protected:
  absl::Status remove(const std::string& uid, const std::string& actor = "") {
    absl::Status status = absl::InternalError("never answered");
    reconciler->remove(
        uid, [&](const absl::StatusOr<JobViewPtr>& result) { status = result.status(); }, actor);
    settle();
    return status;
  }
  // Runs a job to its end and returns its uid.
  std::string finished(const std::string& id) {
    if (nodes.empty()) add_node("n1");
    EXPECT_TRUE(submit(spec(id, 1, 0), "request-" + id).ok());
    train(id, 3);
    finish_all(id);
    EXPECT_EQ(state(id), "SUCCEEDED");
    return job(id)->record->uid;
  }
  std::vector<std::string> keys_of(const std::string& uid) {
    std::vector<std::string> keys;
    for (const store::Record& record : copy_store()) {
      if (record.key.find(uid) != std::string::npos) keys.push_back(record.key);
    }
    return keys;
  }
};

TEST_F(DeletionTest, DeletedJobLeavesOnlyATombstone) {
  const std::string uid = finished("a");
  EXPECT_GT(keys_of(uid).size(), 5u);
  ASSERT_TRUE(remove(uid).ok());
  EXPECT_EQ(job("a"), nullptr);
  EXPECT_EQ(keys_of(uid), std::vector<std::string>{"deleted/" + uid});
  EXPECT_THAT(journal->lines.back(), ::testing::HasSubstr("event=JobDeleted job=projects/default/jobs/a"));
  crash();
  EXPECT_EQ(job("a"), nullptr) << "gone durably";
  EXPECT_EQ(remove(uid).code(), absl::StatusCode::kNotFound) << "a second time";
  const auto again = submit(spec("a", 1, 0), "another");
  ASSERT_TRUE(again.ok()) << "name and folder are free: " << again.status();
  EXPECT_NE((*again)->record->uid, uid);
}

TEST_F(DeletionTest, TombstoneNamesActorAndTime) {
  const std::string uid = finished("a");
  ASSERT_TRUE(remove(uid, "user:alice").ok());
  const auto left = job::decode<job::Tombstone>((*store.get(core::deleted_key(uid)))->value);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->name, "projects/default/jobs/a");
  EXPECT_EQ(left->actor, "user:alice");
  EXPECT_EQ(left->time_ns, absl::ToUnixNanos(clock.now()));
  EXPECT_THAT(journal->lines.back(), ::testing::HasSubstr("actor=user:alice"));
}

// A client that repeats a request has not received the answer, and may not know about the deletion.
TEST_F(DeletionTest, RequestOfADeletedJobIsRefusedForADay) {
  const std::string uid = finished("a");
  ASSERT_TRUE(remove(uid, "user:alice").ok());
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = submit(spec("a", 1, 0), "request-a").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(rpc::reason(refused), "JOB_DELETED");
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("projects/default/jobs/a, which was deleted by"));
    EXPECT_EQ(rpc::reason(submit(spec("a", 1, 0), "request-a", /*print=*/2).status()), "REQUEST_ID_REUSED");
    clock.advance(absl::Hours(23));
    crash();
    connect_all();
    advance(absl::Seconds(1));
  }
  EXPECT_TRUE(keys_of(uid).empty()) << "after a day it is forgotten";
  const auto again = submit(spec("a", 1, 0), "request-a");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE((*again)->record->uid, uid);
  crash();
  EXPECT_EQ((*submit(spec("a", 1, 0), "request-a"))->record->uid, (*again)->record->uid);
}

// The node may return with ranks of a job that is otherwise forgotten.
TEST_F(DeletionTest, TombstoneIsKeptWhileANodeIsAway) {
  const std::string uid = finished("a");
  ASSERT_TRUE(remove(uid).ok());
  disconnect(nodes.at("n1"));
  advance(absl::Seconds(10));  // The lease of the node expires.
  clock.advance(absl::Hours(48));
  advance(absl::Seconds(10));
  EXPECT_EQ(keys_of(uid).size(), 1u);
  connect_all();
  advance(absl::Seconds(1));
  EXPECT_TRUE(keys_of(uid).empty());
}

TEST_F(DeletionTest, TombstonesAreForgottenInBatches) {
  std::vector<std::string> uids;
  for (int i = 0; i < 450; ++i) {
    const std::string id = absl::StrCat("j", i);
    ASSERT_TRUE(submit(spec(id), "request-" + id).ok());
    ASSERT_TRUE(cancel(id).ok());
    ASSERT_TRUE(remove(job(id)->record->uid).ok());
  }
  const auto left = [&] { return store::scan_all(store, core::deleted_key(""))->size(); };
  clock.advance(absl::Hours(24));
  for (const size_t expected : {250u, 50u, 0u}) {
    reconciler->tick();
    settle();
    EXPECT_EQ(left(), expected);
  }
}

TEST_F(DeletionTest, LiveJobsCannotBeDeleted) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("queued")).ok());
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 3);
  for (const std::string id : {"queued", "a"}) {
    const absl::Status refused = remove(job(id)->record->uid);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(rpc::reason(refused), "JOB_NOT_OVER");
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("cancel it first"));
    EXPECT_NE(job(id), nullptr);
  }
  silent = {"n1"};
  ASSERT_TRUE(cancel("a").ok());
  ASSERT_EQ(job("a")->record->state, job::JobState::kStopping);
  const absl::Status stopping = remove(job("a")->record->uid);
  EXPECT_EQ(rpc::reason(stopping), "JOB_NOT_OVER");
  EXPECT_THAT(std::string(stopping.message()),
              ::testing::HasSubstr("it is stopping and can be deleted once it has ended"));
  EXPECT_THAT(std::string(stopping.message()), ::testing::Not(::testing::HasSubstr("cancel")));
  EXPECT_EQ(rpc::reason(remove("nobody")), "JOB_NOT_FOUND");
}

TEST_F(DeletionTest, ConcurrentDeletionsBothSucceed) {
  const std::string uid = finished("a");
  std::vector<absl::Status> answers;
  const auto keep = [&](const absl::StatusOr<JobViewPtr>& result) { answers.push_back(result.status()); };
  reconciler->remove(uid, keep);
  reconciler->remove(uid, keep);
  EXPECT_NE(job("a"), nullptr) << "nothing happens before it is durable";
  settle();
  EXPECT_EQ(answers, std::vector<absl::Status>(2));
  EXPECT_EQ(job("a"), nullptr);
}

TEST_F(DeletionTest, FullDiskRefusesAndKeepsTheJob) {
  const std::string uid = finished("a");
  const std::vector<std::string> before = keys_of(uid);
  store.set_full(true);
  EXPECT_EQ(remove(uid).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(state("a"), "SUCCEEDED");
  EXPECT_EQ(keys_of(uid), before);
}

TEST_F(DeletionTest, WatchersSeeTheDeletion) {
  const std::string uid = finished("a");
  const int64_t cursor = reconciler->published().end();
  const int64_t revision = reconciler->published().revision();
  ASSERT_TRUE(remove(uid).ok());
  const auto batch = reconciler->published().changes(cursor, 10);
  ASSERT_EQ(batch->views.size(), 1u);
  EXPECT_TRUE(batch->views[0]->deleted);
  EXPECT_EQ(batch->views[0]->record->uid, uid);
  EXPECT_GT(batch->views[0]->revision, revision);
  EXPECT_TRUE(reconciler->published().page(0, 1).views.empty());
}

// A node was away while its job ended and was deleted: its attempt is stopped like one of any finished job.
TEST_F(DeletionTest, ReturningNodeMustEndADeletedJob) {
  const std::string uid = finished("a");
  FakeNode& node = nodes.at("n1");
  ASSERT_TRUE(remove(uid).ok());
  crash();
  node.attempts[{uid, 1}].phase = v1::AttemptReport::STARTED;
  node.attempts[{uid, 1}].ranks = {0};
  connect(node);
  EXPECT_EQ(node.received.back().kind_case(), v1::ControllerMessage::kForget) << "stopped, then forgotten";
  EXPECT_TRUE(node.attempts.empty());
  EXPECT_TRUE(reconciler->node("n1")->unknown.empty());
}

TEST_F(DeletionTest, OldJobsAreDeletedIfConfigured) {
  keep_finished = absl::Hours(24);
  crash();
  finished("old");
  advance(absl::Minutes(2));
  EXPECT_NE(job("old"), nullptr);
  clock.advance(absl::Hours(23));
  connect_all();
  finished("new");
  ASSERT_TRUE(submit(spec("waits", 5)).ok());
  clock.advance(absl::Hours(1));
  advance(absl::Minutes(2));
  EXPECT_EQ(job("old"), nullptr);
  EXPECT_NE(job("new"), nullptr);
  EXPECT_EQ(state("waits"), "QUEUED") << "however long it waits";
}

}  // namespace
}  // namespace titan::reconcile
