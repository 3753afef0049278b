// Contents of the audit log.

#include "controller/auth/audit.h"

#include "controller/api/interceptors.h"
#include "tests/controller/api/service_case.h"
#include "titan/v1/auth.grpc.pb.h"

namespace titan::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class CallsAuditTest : public ServiceCase {
 protected:
  void SetUp() override {
    gate_.owner = [this](const auth::LocalConnection&) -> absl::StatusOr<uid_t> { return owner_; };
    ServiceCase::SetUp();
    stop();
    audit_ = auth::Audit::open(folder_ + "/audit.jsonl", {}).value();
    start("127.0.0.1:0");
  }
  std::string text() const {
    std::ifstream file(folder_ + "/audit.jsonl");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Returns "actor method resource request result" for each line.
  std::vector<std::string> audit_lines() const {
    std::ifstream file(folder_ + "/audit.jsonl");
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      EXPECT_EQ(json["peer"], "127.0.0.1");
      const auto field = [&json](const char* name) { return json[name].get<std::string>(); };
      out.push_back(absl::StrCat(field("actor"), " ", field("method"), " ", field("resource"), " ", field("request_id"),
                                 " ", field("result")));
    }
    return out;
  }

  std::atomic<uid_t> owner_ = geteuid();
  const std::string own_ = absl::StrCat("local:", geteuid());
  const std::string other_ = absl::StrCat("local:", geteuid() + 1);
};

// An audit line is written before the caller gets the answer; otherwise the log would prove nothing.
TEST_F(CallsAuditTest, AuditsAllowedAndRefusedCallsBeforeAnswering) {
  v1::Job made;
  v1::CreateJobRequest request = job("a");
  request.set_request_id("5b0c8f3e-0000-4000-8000-000000000005");
  ASSERT_TRUE(create(request, &made).ok());
  EXPECT_THAT(
      audit_lines(),
      ElementsAre(own_ + " JobService.CreateJob projects/default/jobs/a 5b0c8f3e-0000-4000-8000-000000000005 OK"));
  ASSERT_TRUE(get("a").ok());  // Reads are not audited.
  EXPECT_FALSE(cancel("nosuch").ok());
  owner_ = geteuid() + 1;
  EXPECT_FALSE(cancel("a").ok());
  EXPECT_THAT(
      audit_lines(),
      ElementsAre(own_ + " JobService.CreateJob projects/default/jobs/a 5b0c8f3e-0000-4000-8000-000000000005 OK",
                  own_ + " JobService.CancelJob nosuch  JOB_NOT_FOUND",
                  other_ + " JobService.CancelJob   ANOTHER_USER"))
      << "a stranger's request is not read";
}

TEST_F(CallsAuditTest, ConfigurationsAndSecretsAreNotAudited) {
  v1::Job made;
  ASSERT_TRUE(create(job("a"), &made).ok());
  v1::CreateTokenRequest request;
  request.mutable_token()->set_id("abcdefgh");
  request.mutable_token()->set_user("alice");
  request.mutable_token()->set_role(v1::Token::VIEWER);
  request.mutable_token()->add_projects("*");
  request.set_secret_sha256(std::string(32, 'S'));
  grpc::ClientContext context;
  v1::Token token;
  ASSERT_TRUE(v1::AuthService::NewStub(channel_)->CreateToken(&context, request, &token).ok());
  EXPECT_THAT(audit_lines(), ElementsAre(own_ + " JobService.CreateJob projects/default/jobs/a  OK",
                                         own_ + " AuthService.CreateToken tokens/abcdefgh  OK"));
  EXPECT_THAT(text(), Not(HasSubstr("dump")));
  EXPECT_THAT(text(), Not(HasSubstr("SSSS")));
  EXPECT_THAT(text(), Not(HasSubstr("5353")));
}

// Streams and calls through the synchronous interface are audited, too.
TEST_F(CallsAuditTest, StreamsAreAuditedWhenTheyEnd) {
  grpc::ClientContext context;
  v1::BackupChunk chunk;
  const auto backup = v1::ClusterService::NewStub(channel_)->Backup(&context, {});
  while (backup->Read(&chunk)) {
  }
  ASSERT_TRUE(backup->Finish().ok());
  v1::ProfileJobRequest profile;
  profile.set_name("nosuch");
  grpc::ClientContext other;
  v1::TraceChunk trace;
  const auto traces = jobs_->ProfileJob(&other, profile);
  while (traces->Read(&trace)) {
  }
  EXPECT_FALSE(traces->Finish().ok());
  EXPECT_THAT(audit_lines(),
              ElementsAre(own_ + " ClusterService.Backup   OK", own_ + " JobService.ProfileJob nosuch  JOB_NOT_FOUND"));
}

}  // namespace
}  // namespace titan::api
