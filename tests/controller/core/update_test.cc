// Changes of live and finished jobs are durable before they are answered, whatever happens in between.

#include "common/service/rpc/error.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class UpdateTest : public ::testing::Test, protected World {
 protected:
  core::UpdateJob update_of(const std::string& id) {
    core::UpdateJob request;
    request.uid = job(id)->record->uid;
    request.actor = "user:alice";
    return request;
  }
  absl::Status send(const core::UpdateJob& request) {
    absl::Status status = absl::InternalError("never answered");
    reconciler->update(request, [&](const absl::StatusOr<JobViewPtr>& result) { status = result.status(); });
    settle();
    return status;
  }
  void write(store::Mutation mutation) {
    store.commit({.mutations = {std::move(mutation)}}, [](const auto&) {});
    store.run_pending();
  }
  absl::Status label(const std::string& id, const std::string& key, const std::string& value) {
    core::UpdateJob request = update_of(id);
    request.labels[key] = value;
    return send(request);
  }
};

// Two jobs wait for one node: the job with the raised priority gets it.
TEST_F(UpdateTest, NewPriorityTakesEffectAtOnce) {
  ASSERT_TRUE(submit(spec("first", 1, 0)).ok());
  ASSERT_TRUE(submit(spec("second", 1, 0)).ok());
  core::UpdateJob raise = update_of("second");
  raise.priority = 5;
  ASSERT_TRUE(send(raise).ok());
  crash();
  EXPECT_EQ(job("second")->record->spec.priority, 5);
  add_node("n1", 1);
  settle();
  EXPECT_NE(state("second"), "QUEUED");
  EXPECT_EQ(state("first"), "QUEUED");
  EXPECT_EQ(count_events("second", "JobUpdated"), 1);
}

// If a controller dies between accepting an update and applying it, the next one applies it at its start.
TEST_F(UpdateTest, AcceptedUpdateSurvivesItsController) {
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  const std::string uid = job("a")->record->uid;
  write(store::put(core::update_key(uid), R"({"priority":4,"labels":{"k":"v"},"etag":"","actor":"user:bob"})"));
  crash();
  settle();
  EXPECT_EQ(job("a")->record->spec.priority, 4);
  EXPECT_THAT(job("a")->record->labels, ElementsAre(Pair("k", "v")));
  EXPECT_EQ(count_events("a", "JobUpdated"), 1);
  crash();
  settle();
  EXPECT_EQ(count_events("a", "JobUpdated"), 1) << "once";
}

TEST_F(UpdateTest, FullDiskRefusesWithoutSideEffects) {
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  store.set_full(true);
  EXPECT_EQ(label("a", "k", "v").code(), absl::StatusCode::kResourceExhausted);
  store.set_full(false);
  settle();
  EXPECT_TRUE(job("a")->record->labels.empty());
  EXPECT_EQ(count_events("a", "JobUpdated"), 0);
  EXPECT_TRUE(label("a", "k", "v").ok());
}

// Two callers read the same job: the second one gets an error, even if the first update is not durable yet.
TEST_F(UpdateTest, OneOfTwoUpdatesWithTheSameEtagWins) {
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  core::UpdateJob one = update_of("a");
  one.etag = job::etag(*job("a")->record);
  core::UpdateJob other = one;
  one.title = "one";
  other.title = "other";
  std::vector<absl::StatusCode> codes;
  const auto keep = [&](const absl::StatusOr<JobViewPtr>& result) { codes.push_back(result.status().code()); };
  reconciler->update(one, keep);
  reconciler->update(other, keep);
  settle();
  EXPECT_THAT(codes, ::testing::UnorderedElementsAre(absl::StatusCode::kOk, absl::StatusCode::kAborted));
  EXPECT_EQ(job("a")->record->spec.title, "one");
}

TEST_F(UpdateTest, ProgressDoesNotChangeTheEtag) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  const std::string before = job::etag(*job("a")->record);
  train("a", 1);
  train("a", 2);
  EXPECT_EQ(job::etag(*job("a")->record), before);
}

TEST_F(UpdateTest, FinishedJobKeepsItsHistory) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  finish_all("a");
  ASSERT_EQ(state("a"), "SUCCEEDED");
  const std::vector<std::string> before = events("a");
  ASSERT_TRUE(label("a", "k", "v").ok());
  ASSERT_EQ(events("a").size(), before.size() + 1);
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  EXPECT_EQ(job("a")->progress.step, 1);
  core::UpdateJob raise = update_of("a");
  raise.priority = 1;
  EXPECT_EQ(rpc::reason(send(raise)), "JOB_OVER");
  crash();
  EXPECT_THAT(job("a")->record->labels, ElementsAre(Pair("k", "v")));
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

// A deletion is in progress: nothing may restore the job's record after it.
TEST_F(UpdateTest, ADeletedJobStaysDeleted) {
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  ASSERT_TRUE(cancel("a").ok());
  core::UpdateJob late = update_of("a");
  late.labels["k"] = "v";
  absl::Status updated = absl::InternalError("never answered");
  absl::Status accepted_first = updated;
  reconciler->update(late, [&](const auto& result) { accepted_first = result.status(); });
  reconciler->remove(late.uid, [](const auto&) {});
  reconciler->update(late, [&](const auto& result) { updated = result.status(); });
  settle();
  EXPECT_EQ(updated.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(accepted_first.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(job("a"), nullptr);
  crash();
  EXPECT_EQ(job("a"), nullptr);
  EXPECT_TRUE(store::scan_all(store, "update/")->empty());
}

// The same cancel is repeated after the job has ended in another way.
TEST_F(UpdateTest, RepeatedCancelGivesTheSameAnswer) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  const std::string uid = job("a")->record->uid;
  const auto cancel_as = [&](const std::string& request_id) {
    absl::Status status = absl::InternalError("never answered");
    reconciler->cancel(
        uid, false, [&](const auto& result) { status = result.status(); }, "user:alice", request_id);
    settle();
    return status;
  };
  ASSERT_TRUE(cancel_as("r1").ok());
  EXPECT_EQ(job("a")->record->intent.actor, "user:alice");
  ASSERT_TRUE(cancel_as("r2").ok());
  finish_all("a");
  const std::string ended = state("a");
  EXPECT_TRUE(cancel_as("r1").ok()) << ended;
  EXPECT_TRUE(cancel_as("r2").ok());
  crash();
  EXPECT_TRUE(cancel_as("r1").ok());
  EXPECT_EQ(state("a"), ended);
}

TEST_F(UpdateTest, NodeEventsNameTheirActor) {
  add_node("n1");
  for (const bool on : {true, false}) {
    reconciler->cordon(
        "n1", on, "disk", [](const auto&) {}, on ? "user:alice" : "peer:10.0.0.7");
    settle();
  }
  std::vector<std::string> actions;
  const auto records = store::scan_all(store, node_events_prefix("n1"));
  for (const store::Record& record : *records) {
    const auto event = job::decode<job::EventRecord>(record.value);
    actions.push_back(event->reason + " " + event->actor);
  }
  EXPECT_THAT(actions,
              ElementsAre("NodeRegistered peer:10.0.0.8", "NodeCordoned user:alice", "NodeUncordoned peer:10.0.0.7"));
}

TEST_F(UpdateTest, RecordsOfAnOlderVersionHaveNoLabels) {
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  nlohmann::json record = nlohmann::json::parse(job::encode(*job("a")->record));
  record.erase("labels");
  record.erase("owner");
  record["intent"].erase("request_ids");
  const std::string uid = job("a")->record->uid;
  write(store::put(core::job_key(uid), record.dump()));
  crash();
  ASSERT_NE(job("a"), nullptr);
  EXPECT_TRUE(job("a")->record->labels.empty());
  EXPECT_EQ(job("a")->record->owner, "");
  EXPECT_TRUE(label("a", "k", "v").ok());
}

}  // namespace
}  // namespace titan::reconcile
