// Repeated submissions, used folders and a full disk.

#include "common/service/rpc/error.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class RequestsTest : public ::testing::Test, protected World {};

TEST_F(RequestsTest, TheSameRequestGivesTheSameJob) {
  const auto first = submit(spec("a"), "r1");
  const auto second = submit(spec("a"), "r1");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*first)->record->uid, (*second)->record->uid);
  crash();
  const auto third = submit(spec("a"), "r1");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ((*first)->record->uid, (*third)->record->uid);
  EXPECT_EQ(rpc::reason(submit(spec("a"), "r1", /*print=*/2).status()), "REQUEST_ID_REUSED");
}

// The nodes may be gone when a client repeats an unanswered request.
TEST_F(RequestsTest, RepeatedRequestIgnoresTheFit) {
  const absl::Status unfit = absl::FailedPreconditionError("fits nowhere");
  absl::StatusOr<JobViewPtr> answer;
  const auto create_with = [&](const std::string& id, const absl::Status& why) {
    core::CreateJob request = create_job(spec(id), "request-" + id);
    request.unfit = why;
    reconciler->create(std::move(request), [&](const auto& made) { answer = made; });
    settle();
    return answer.ok() ? (*answer)->record->uid : std::string(answer.status().message());
  };
  const std::string uid = create_with("a", absl::OkStatus());
  EXPECT_EQ(create_with("a", unfit), uid);
  crash();
  EXPECT_EQ(create_with("a", unfit), uid);
  EXPECT_EQ(create_with("b", unfit), "fits nowhere");
  EXPECT_EQ(job("b"), nullptr);
  EXPECT_NE(create_with("b", absl::OkStatus()), uid) << "a refused request made no job, and may be repeated";
}

// Both copies of a request arrive before either is durable.
TEST_F(RequestsTest, TwoCopiesInFlightGiveOneJob) {
  std::vector<std::string> uids;
  const auto keep = [&](const absl::StatusOr<JobViewPtr>& result) { uids.push_back((*result)->record->uid); };
  reconciler->create(create_job(spec("a"), "r1"), keep);
  reconciler->create(create_job(spec("a"), "r1"), keep);
  settle();
  ASSERT_EQ(uids.size(), 2u);
  EXPECT_EQ(uids[0], uids[1]);
}

TEST_F(RequestsTest, OneLiveJobPerFolder) {
  ASSERT_TRUE(submit(spec("a")).ok());
  job::SchedulingSpec other = spec("b");
  other.dump_folder = "/dump/a";
  const absl::Status refused = submit(other).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::reason(refused), "DUMP_FOLDER_IN_USE");
  EXPECT_EQ(reconciler->would_create(other).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_TRUE(submit(other).ok()) << "a new job may use the folder of a finished job";
}

// A user who submits in one project may not see another project's jobs or their folders.
TEST_F(RequestsTest, JobOfAnotherProjectIsNotNamed) {
  job::SchedulingSpec first = spec("secret");
  first.project = "vision";
  first.real_folder = "/disk/hidden";
  ASSERT_TRUE(submit(first).ok());
  job::SchedulingSpec other = spec("b");
  other.dump_folder = "/disk/hidden";
  for (const absl::Status& refused : {submit(other).status(), reconciler->would_create(other).status()}) {
    EXPECT_EQ(rpc::reason(refused), "DUMP_FOLDER_IN_USE");
    EXPECT_THAT(std::string(refused.message()),
                ::testing::HasSubstr("belongs to a job of another project, which is not over"));
    EXPECT_THAT(refused.message(),
                ::testing::Not(::testing::AnyOf(::testing::HasSubstr("secret"), ::testing::HasSubstr("vision"))));
    EXPECT_THAT(rpc::metadata(refused), ::testing::ElementsAre(::testing::Pair("dump_folder", "/disk/hidden")));
  }
}

TEST_F(RequestsTest, OneJobPerName) {
  ASSERT_TRUE(submit(spec("a")).ok());
  job::SchedulingSpec other = spec("a");
  other.dump_folder = "/dump/other";
  EXPECT_EQ(submit(other).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(RequestsTest, ValidateOnlyLeavesNoTrace) {
  const int64_t revision = store.revision();
  EXPECT_TRUE(reconciler->would_create(spec("a")).ok());
  settle();
  EXPECT_EQ(store.revision(), revision);
  EXPECT_EQ(job("a"), nullptr);
}

// On a full disk, requests are rejected without side effects and reports of nodes are not lost; the controller recovers
// by itself.
TEST_F(RequestsTest, FullDiskRefusesAndRecovers) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  store.set_full(true);
  EXPECT_EQ(submit(spec("b", 1, 0), "r").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cancel("a").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(job("b"), nullptr);
  train("a", 2);
  event(node, key("a"), 0, R"({"kind":"checkpoint_committed","step":2,"full":true,"seconds":0.1})");
  settle();
  EXPECT_EQ(job("a")->progress.committed_step, 0) << "not durable yet";
  store.set_full(false);
  settle();
  EXPECT_EQ(job("a")->progress.committed_step, 2);
  EXPECT_EQ(job("a")->progress.step, 2);
  EXPECT_TRUE(submit(spec("b", 1, 0), "r").ok());
  finish_all("a");
  EXPECT_EQ(state("a"), "SUCCEEDED");
}

// A rejection overtakes transactions that wait for space: each outcome belongs to its own change.
TEST_F(RequestsTest, RefusalCompletesOnlyItsOwnChange) {
  FakeNode& node = add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  store.set_full(true);
  event(node, key("a"), 0, R"({"kind":"checkpoint_committed","step":1,"full":true,"seconds":0.1})");
  EXPECT_EQ(submit(spec("b", 1, 0), "r").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(job("a")->progress.committed_step, 0) << "another change's refusal must not complete it";
  store.set_full(false);
  settle();
  EXPECT_EQ(job("a")->progress.committed_step, 1);
  ASSERT_TRUE(submit(spec("b", 1, 0), "r").ok());
  EXPECT_EQ(state("b"), "STARTING") << "its specification is stored";
}

// A client that has seen a job at a revision never sees it at an older one.
TEST_F(RequestsTest, RevisionsDoNotDecreaseOverARestart) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  train("a", 2);
  const int64_t shown = job("a")->revision;
  crash();
  EXPECT_GE(job("a")->revision, shown);
}

// Events have bounded length, because each is one message to its readers.
TEST_F(RequestsTest, LongMessagesOfEventsAreCut) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  event(node, key("a"), 0, absl::StrCat(R"({"kind":"warning","message":")", std::string(10'000, 'w'), R"("})"));
  reconciler->cordon("n1", true, std::string(10'000, 'r'), [](const auto&) {});
  settle();
  std::vector<std::string> longest;
  for (const std::string& prefix : {job_events_prefix(job("a")->record->uid), node_events_prefix("n1")}) {
    std::string& found = longest.emplace_back();
    const auto records = store::scan_all(store, prefix);
    for (const auto& record : *records) {
      const std::string message = job::decode<job::EventRecord>(record.value)->message;
      if (message.size() > found.size()) found = message;
    }
  }
  EXPECT_THAT(longest, ::testing::Each(::testing::AllOf(::testing::SizeIs(4096), ::testing::EndsWith("..."))));
}

TEST_F(RequestsTest, OldEventsAreDropped) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  for (int i = 0; i < 12'000; ++i) event(node, key("a"), 0, R"({"kind":"trace"})");
  settle();
  EXPECT_EQ(events("a").size(), 10'000u);
}

}  // namespace
}  // namespace titan::reconcile
