// Callers that authenticate with a token.

#include "common/base/digest/digest.h"
#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class TokenTest : public ServiceCase {
 protected:
  void SetUp() override {
    gate_.owner = [this](const auth::LocalConnection&) -> absl::StatusOr<uid_t> { return owner_; };
    ServiceCase::SetUp();
    begin();
  }
  void begin() { auth_ = v1::AuthService::NewStub(channel_); }

  std::unique_ptr<grpc::ClientContext> with(const std::string& id) const {
    auto context = std::make_unique<grpc::ClientContext>();
    rpc::set_deadline(*context, absl::Seconds(20));
    if (!id.empty()) context->AddMetadata("authorization", "Bearer titan_" + id + "_" + kSecret);
    return context;
  }
  // Creates a token as the controller's own user.
  void make(const std::string& id, v1::Token::Role role, const std::string& project, const std::string& user) {
    v1::CreateTokenRequest request;
    request.mutable_token()->set_id(id);
    request.mutable_token()->set_user(user);
    request.mutable_token()->set_role(role);
    request.mutable_token()->add_projects(project);
    request.set_secret_sha256(digest::sha256(kSecret));
    v1::Token token;
    owner_ = geteuid();
    const grpc::Status made = auth_->CreateToken(with("").get(), request, &token);
    ASSERT_TRUE(made.ok()) << made.error_message();
    EXPECT_EQ(token.creator(), absl::StrCat("local:", geteuid()));
    owner_ = geteuid() + 1;
  }
  grpc::Status revoke(const std::string& id) {
    v1::RevokeTokenRequest request;
    request.set_id(id);
    v1::Token token;
    owner_ = geteuid();
    grpc::Status status = auth_->RevokeToken(with("").get(), request, &token);
    owner_ = geteuid() + 1;
    return status;
  }
  absl::StatusOr<v1::Job> submit(const std::string& token, const std::string& id, const std::string& project) {
    v1::CreateJobRequest request;
    config::JobConfig config;
    config.job.dump_folder = "/dump/" + id;
    config.scheduling.job_id = id;
    config.scheduling.project = project;
    request.mutable_spec()->set_config_json(config::to_json(config).dump());
    v1::Job made;
    const absl::Status status = rpc::from_grpc(jobs_->CreateJob(with(token).get(), request, &made));
    if (!status.ok()) return status;
    return made;
  }
  std::vector<std::string> names(const std::string& token) {
    v1::ListJobsResponse response;
    EXPECT_TRUE(jobs_->ListJobs(with(token).get(), {}, &response).ok());
    std::vector<std::string> out;
    for (const v1::Job& job : response.jobs()) out.push_back(job.name());
    return out;
  }

  static constexpr char kSecret[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  std::atomic<uid_t> owner_ = geteuid();
  std::unique_ptr<v1::AuthService::Stub> auth_;
};

TEST_F(TokenTest, TokensUserOwnsTheJobsItSubmits) {
  make("alicetoken", v1::Token::OPERATOR, "vision", "alice");
  const auto made = submit("alicetoken", "a", "vision");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->owner(), "user:alice");
  const auto record = reconciler_->published().find_by_name(made->name())->record;
  EXPECT_EQ(record->run_as, "alice") << "its ranks run as the user of that name";
  EXPECT_FALSE(record->run_as_local);
  auto claims = with("alicetoken");
  claims->AddMetadata("titan-user", "bob");
  v1::CancelJobRequest request;
  request.set_name(made->name());
  v1::Job job;
  ASSERT_TRUE(jobs_->CancelJob(claims.get(), request, &job).ok());
  v1::ListEventsRequest events;
  events.set_job(made->name());
  const auto context = with("alicetoken");
  const auto stream = jobs_->ListEvents(context.get(), events);
  std::vector<std::string> actors;
  for (v1::Event event; stream->Read(&event);) {
    if (!event.actor().empty()) actors.push_back(event.actor());
  }
  EXPECT_THAT(actors, ElementsAre("user:alice", "user:alice"));
}

TEST_F(TokenTest, ListsShowOnlyTheTokensProjects) {
  make("alicetoken", v1::Token::OPERATOR, "vision", "alice");
  make("bobtoken00", v1::Token::OPERATOR, "text", "bob");
  make("evetoken00", v1::Token::VIEWER, "*", "eve");
  ASSERT_TRUE(submit("alicetoken", "a", "vision").ok());
  ASSERT_TRUE(submit("bobtoken00", "b", "text").ok());
  EXPECT_EQ(rpc::reason(submit("bobtoken00", "c", "vision").status()), "ROLE_MISSING");
  EXPECT_THAT(names("alicetoken"), ElementsAre("projects/vision/jobs/a"));
  EXPECT_THAT(names("bobtoken00"), ElementsAre("projects/text/jobs/b"));
  EXPECT_THAT(names("evetoken00"), UnorderedElementsAre("projects/vision/jobs/a", "projects/text/jobs/b"));
  v1::GetJobRequest request;
  request.set_name("projects/text/jobs/b");
  v1::Job job;
  EXPECT_EQ(jobs_->GetJob(with("alicetoken").get(), request, &job).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const auto events_of = [this](const std::string& token) {
    const auto context = with(token);
    const auto stream = jobs_->ListEvents(context.get(), {});
    std::set<std::string> found;
    for (v1::Event event; stream->Read(&event);) found.insert(event.job());
    return found;
  };
  // A node's event that names a job belongs to that job, too.
  job::EventRecord event;
  event.node = "n1";
  event.job = "projects/text/jobs/b";
  event.message = "projects/text/jobs/b: a rank cannot be ended";
  put_record(core::event_key(core::node_events_prefix("n1"), 1), job::encode(event));
  EXPECT_THAT(events_of("alicetoken"), ElementsAre("projects/vision/jobs/a"));
  EXPECT_THAT(events_of("evetoken00"), UnorderedElementsAre("projects/vision/jobs/a", "projects/text/jobs/b"));
}

// A watch of all jobs skips those that the caller may not see, in its snapshot and later.
TEST_F(TokenTest, WatchShowsOnlyTheTokensProjects) {
  make("alicetoken", v1::Token::OPERATOR, "vision", "alice");
  make("bobtoken00", v1::Token::OPERATOR, "text", "bob");
  for (int i = 0; i < 70; ++i) ASSERT_TRUE(submit("bobtoken00", absl::StrCat("b", i), "text").ok());
  ASSERT_TRUE(submit("alicetoken", "a", "vision").ok());
  const auto context = with("alicetoken");
  const auto watch = jobs_->WatchJobs(context.get(), {});
  v1::JobChange change;
  ASSERT_TRUE(watch->Read(&change));
  EXPECT_EQ(change.job().name(), "projects/vision/jobs/a");
  ASSERT_TRUE(watch->Read(&change));
  EXPECT_EQ(change.kind(), v1::JobChange::SNAPSHOT_END);
  ASSERT_TRUE(submit("bobtoken00", "other", "text").ok());
  ASSERT_TRUE(submit("alicetoken", "later", "vision").ok());
  do {  // The first job may still change, for instance when the queue explains why it waits.
    ASSERT_TRUE(watch->Read(&change));
    if (change.kind() != v1::JobChange::BOOKMARK) {
      EXPECT_THAT(change.job().name(), HasSubstr("projects/vision/"));
    }
  } while (change.kind() == v1::JobChange::BOOKMARK || change.job().name() == "projects/vision/jobs/a");
  EXPECT_EQ(change.job().name(), "projects/vision/jobs/later");
  context->TryCancel();
}

TEST_F(TokenTest, RevokingEndsOpenStreams) {
  make("alicetoken", v1::Token::VIEWER, "*", "alice");
  const auto watching = with("alicetoken"), following = with("alicetoken");
  const auto watch = jobs_->WatchJobs(watching.get(), {});
  v1::JobChange change;
  ASSERT_TRUE(watch->Read(&change));  // The watch is open.
  v1::ListEventsRequest follow;
  follow.set_follow(true);
  const auto events = jobs_->ListEvents(following.get(), follow);
  ASSERT_TRUE(revoke("alicetoken").ok());
  while (watch->Read(&change)) {
  }
  EXPECT_EQ(rpc::reason(rpc::from_grpc(watch->Finish())), "TOKEN_REVOKED");
  v1::Event event;
  while (events->Read(&event)) {
  }
  EXPECT_EQ(events->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  v1::ListJobsResponse response;
  const absl::Status later = rpc::from_grpc(jobs_->ListJobs(with("alicetoken").get(), {}, &response));
  EXPECT_EQ(rpc::reason(later), "TOKEN_UNKNOWN");
}

TEST_F(TokenTest, SurvivesARestart) {
  make("alicetoken", v1::Token::OPERATOR, "vision", "alice");
  stop();
  start("127.0.0.1:0");
  EXPECT_TRUE(submit("alicetoken", "a", "vision").ok());
}

// A wrong token is rejected even if none would be needed: a caller who sends one wants to act as its user.
TEST_F(TokenTest, WrongTokensAreRefusedEvenIfNoneIsNeeded) {
  owner_ = geteuid();
  v1::ListJobsResponse response;
  EXPECT_TRUE(jobs_->ListJobs(with("").get(), {}, &response).ok());
  for (const char* value : {"", "Bearer", "Bearer x", "Basic abc"}) {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    context.AddMetadata("authorization", value);
    const absl::Status status = rpc::from_grpc(jobs_->ListJobs(&context, {}, &response));
    EXPECT_EQ(rpc::reason(status), "TOKEN_UNKNOWN") << value;
  }
}

}  // namespace
}  // namespace titan::api
