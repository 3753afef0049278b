// Tests which fields of a job can be changed, who is recorded as the actor, and repeated calls.

#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class UpdateTest : public ServiceCase {
 protected:
  void SetUp() override {
    ServiceCase::SetUp();
    v1::CreateJobRequest request = job("a");
    (*request.mutable_labels())["team"] = "vision";
    (*request.mutable_labels())["old"] = "1";
    ASSERT_TRUE(create(request, &job_).ok());
  }

  static v1::UpdateJobRequest update(const std::vector<std::string>& paths) {
    v1::UpdateJobRequest request;
    request.mutable_job()->set_name("a");
    for (const std::string& path : paths) request.mutable_update_mask()->add_paths(path);
    return request;
  }
  absl::StatusOr<v1::Job> send(const v1::UpdateJobRequest& request, const std::string& user = "") {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(10));
    if (!user.empty()) context.AddMetadata("titan-user", user);
    v1::Job answer;
    const absl::Status status = rpc::from_grpc(jobs_->UpdateJob(&context, request, &answer));
    if (!status.ok()) return status;
    return answer;
  }
  std::vector<v1::Event> events() {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(10));
    v1::ListEventsRequest request;
    request.set_job("a");
    auto stream = jobs_->ListEvents(&context, request);
    std::vector<v1::Event> all;
    for (v1::Event event; stream->Read(&event);) all.push_back(event);
    EXPECT_TRUE(stream->Finish().ok());
    return all;
  }

  v1::Job job_;
};

TEST_F(UpdateTest, ChangesMaskedFieldsDurably) {
  v1::UpdateJobRequest request = update({"spec.priority", "title", "labels.team", "labels.old"});
  request.mutable_job()->mutable_spec()->set_priority(7);
  request.mutable_job()->mutable_spec()->set_ranks(99);  // Not in the mask.
  request.mutable_job()->set_title("new title");
  (*request.mutable_job()->mutable_labels())["team"] = "audio";
  const auto updated = send(request, "alice");
  ASSERT_TRUE(updated.ok()) << updated.status();
  EXPECT_EQ(updated->spec().priority(), 7);
  EXPECT_EQ(updated->spec().ranks(), job_.spec().ranks());
  EXPECT_EQ(updated->title(), "new title");
  EXPECT_THAT(updated->labels(), UnorderedElementsAre(Pair("team", "audio")));
  EXPECT_NE(updated->etag(), job_.etag());
  const v1::Event last = events().back();
  EXPECT_EQ(last.reason(), "JobUpdated");
  EXPECT_EQ(last.actor(), "user:alice");
  EXPECT_EQ(last.message(), "priority 0 to 7, title 'new title', label team=audio, no label old");
  // The repeated call changes nothing.
  ASSERT_TRUE(send(request, "alice").ok());
  EXPECT_EQ(events().size(), 2u);
  stop();
  start("127.0.0.1:0");
  EXPECT_EQ(get("a")->spec().priority(), 7);
  EXPECT_EQ(get("a")->etag(), updated->etag());
  EXPECT_EQ(get("a")->owner(), job_.owner());
}

TEST_F(UpdateTest, WithoutAMaskSetFieldsAreUpdated) {
  v1::UpdateJobRequest request = update({});
  request.mutable_job()->mutable_spec()->set_priority(2);
  EXPECT_EQ(send(request)->spec().priority(), 2);
  EXPECT_EQ(send(request)->labels().size(), 2u);
  request = update({"labels"});
  EXPECT_EQ(send(request)->labels().size(), 0u) << "the mask names the labels, so all are removed";
  request = update({"*"});
  EXPECT_EQ(send(request)->spec().priority(), 0);
}

TEST_F(UpdateTest, PathsThatCannotBeUpdatedAreNamed) {
  const absl::Status bad = send(update({"spec.ranks", "state", "title", "owner"})).status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rpc::reason(bad), "UPDATE_MASK_INVALID");
  ASSERT_EQ(rpc::field_violations(bad).size(), 3u);
  EXPECT_THAT(rpc::field_violations(bad)[0].description,
              HasSubstr("'spec.ranks' cannot be updated; spec.priority, title, labels and labels.KEY can"));
}

TEST_F(UpdateTest, StaleEtagsAreRefused) {
  v1::UpdateJobRequest request = update({"title"});
  request.mutable_job()->set_title("first");
  request.set_etag(job_.etag());
  const auto first = send(request);
  ASSERT_TRUE(first.ok()) << first.status();
  request.mutable_job()->set_title("second");
  const absl::Status refused = send(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::reason(refused), "ETAG_MISMATCH");
  request.clear_etag();
  request.mutable_job()->set_etag(job_.etag());
  EXPECT_EQ(rpc::reason(send(request).status()), "ETAG_MISMATCH");
  request.mutable_job()->set_etag(first->etag());
  EXPECT_EQ(send(request)->title(), "second");
}

TEST_F(UpdateTest, ValidateOnlyChangesNothing) {
  v1::UpdateJobRequest request = update({"spec.priority"});
  request.mutable_job()->mutable_spec()->set_priority(9);
  request.set_validate_only(true);
  EXPECT_EQ(send(request)->spec().priority(), 9);
  EXPECT_EQ(get("a")->spec().priority(), 0);
  request.set_etag("another");
  EXPECT_EQ(send(request).status().code(), absl::StatusCode::kAborted);
}

TEST_F(UpdateTest, FinishedJobsAcceptOnlyLabelChanges) {
  ASSERT_TRUE(cancel("a").ok());
  v1::UpdateJobRequest request = update({"spec.priority"});
  const absl::Status refused = send(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::reason(refused), "JOB_OVER");
  request = update({"labels.kept"});
  (*request.mutable_job()->mutable_labels())["kept"] = "yes";
  const auto updated = send(request);
  ASSERT_TRUE(updated.ok()) << updated.status();
  EXPECT_EQ(updated->labels().at("kept"), "yes");
  EXPECT_EQ(updated->state(), v1::Job::CANCELLED);
  stop();
  start("127.0.0.1:0");
  EXPECT_EQ(get("a")->labels().at("kept"), "yes");
  EXPECT_EQ(get("a")->state(), v1::Job::CANCELLED);
}

TEST_F(UpdateTest, BadValuesAreRefused) {
  v1::UpdateJobRequest request = update({"labels.Team", "labels.team"});
  (*request.mutable_job()->mutable_labels())["Team"] = "x";
  (*request.mutable_job()->mutable_labels())["team"] = "no spaces";
  const absl::Status bad = send(request).status();
  EXPECT_EQ(rpc::reason(bad), "LABELS_INVALID");
  EXPECT_EQ(rpc::field_violations(bad).size(), 2u);
  request = update({"spec.priority"});
  request.mutable_job()->mutable_spec()->set_priority(2'000'000);
  EXPECT_EQ(rpc::field_violations(send(request).status()).at(0).field, "job.spec.priority");
  request = update({"labels.k0"});
  for (int i = 0; i < 31; ++i) {
    request.mutable_update_mask()->add_paths(absl::StrCat("labels.k", i));
    (*request.mutable_job()->mutable_labels())[absl::StrCat("k", i)] = "x";
  }
  EXPECT_EQ(rpc::reason(send(request).status()), "LABELS_INVALID") << "33 labels with the two existing ones";
  EXPECT_EQ(get("a")->labels().size(), 2u);
  v1::CreateJobRequest created = job("b");
  (*created.mutable_labels())["-"] = "x";
  v1::Job answer;
  EXPECT_EQ(rpc::reason(create(created, &answer)), "LABELS_INVALID");
  request = update({"title"});
  request.mutable_job()->set_name("nothing");
  EXPECT_EQ(send(request).status().code(), absl::StatusCode::kNotFound);
}

// Events name the actor; for a caller without a name they show where the call came from.
TEST_F(UpdateTest, EventsNameTheActor) {
  EXPECT_EQ(job_.owner(), absl::StrCat("local:", geteuid()));
  grpc::ClientContext context;
  rpc::set_deadline(context, absl::Seconds(10));
  context.AddMetadata("titan-user", "bob");
  v1::CreateJobRequest request = job("b");
  v1::Job created;
  ASSERT_TRUE(jobs_->CreateJob(&context, request, &created).ok());
  EXPECT_EQ(created.owner(), "user:bob");
  grpc::ClientContext cancelling;
  cancelling.AddMetadata("titan-user", "carol");
  v1::CancelJobRequest cancelled;
  cancelled.set_name("a");
  v1::Job answer;
  ASSERT_TRUE(jobs_->CancelJob(&cancelling, cancelled, &answer).ok());
  std::vector<std::string> actors;
  for (const v1::Event& event : events()) actors.push_back(absl::StrCat(event.reason(), " ", event.actor()));
  EXPECT_THAT(actors,
              ElementsAre(absl::StrCat("JobQueued local:", geteuid()), "CancelRequested user:carol", "JobCancelled "));
}

TEST_F(UpdateTest, DeletingMissingJobsCanBeAllowed) {
  v1::DeleteJobRequest request;
  request.set_name("nothing");
  v1::Job answer;
  EXPECT_EQ(call(&v1::JobService::Stub::DeleteJob, request, &answer).code(), absl::StatusCode::kNotFound);
  request.set_allow_missing(true);
  ASSERT_TRUE(call(&v1::JobService::Stub::DeleteJob, request, &answer).ok());
  EXPECT_EQ(answer.name(), "projects/default/jobs/nothing");
  request.set_name("a");
  EXPECT_EQ(rpc::reason(call(&v1::JobService::Stub::DeleteJob, request, &answer)), "JOB_NOT_OVER");
}

// Each kind of detail is present once, and temporary errors have a retry delay.
TEST(ErrorTest, DetailsOnTheWire) {
  const absl::Status busy = rpc::from_grpc(rpc::to_grpc(rpc::error(absl::StatusCode::kUnavailable, "NOT_LEADER", "x")));
  EXPECT_EQ(rpc::retry_delay(busy), absl::Seconds(1));
  EXPECT_EQ(rpc::reason(busy), "NOT_LEADER");
  EXPECT_EQ(rpc::retry_delay(rpc::from_grpc(rpc::to_grpc(busy))), absl::Seconds(1)) << "not added twice";
  int details = 0;
  busy.ForEachPayload([&](absl::string_view, const absl::Cord&) { ++details; });
  EXPECT_EQ(details, 2);
  const absl::Status wide = rpc::from_grpc(rpc::to_grpc(absl::NotFoundError(std::string(9'000, 'x'))));
  EXPECT_LT(wide.message().size(), 2'500u) << "clients refuse larger ones";
  const absl::Status cut = rpc::from_grpc(
      rpc::to_grpc(absl::NotFoundError(absl::StrCat(std::string(2'000, 'x'), "\n", std::string(2'000, 'y')))));
  EXPECT_EQ(cut.message(), std::string(2'000, 'x') + " ...") << "cut at the end of a line";
  const absl::Status full = rpc::from_grpc(rpc::to_grpc(absl::ResourceExhaustedError("disk")));
  EXPECT_EQ(rpc::retry_delay(full), absl::Seconds(1));
  const absl::Status bad = rpc::from_grpc(rpc::to_grpc(absl::NotFoundError("x")));
  EXPECT_EQ(rpc::retry_delay(bad), absl::ZeroDuration());
}

}  // namespace
}  // namespace titan::api
