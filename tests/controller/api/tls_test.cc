// Tests which identity a certificate gives and what it permits.

#include "tests/controller/api/tls_case.h"

namespace titan::api {
namespace {

using rpc::Identity;
using ::testing::HasSubstr;
using Kind = Identity::Kind;

using TlsTest = TlsCase;

TEST_F(TlsTest, AdminCertificatesNameTheOwner) {
  certify(authority_, folder("alice"), {Kind::kAdmin, "alice"});
  EXPECT_EQ(submit(security(folder("alice")), "a")->owner(), "user:alice");
}

// Users get permissions only with a token.
TEST_F(TlsTest, UserWithoutATokenMayDoNothing) {
  certify(authority_, folder("bob"), {Kind::kUser, "bob"});
  const absl::Status status = submit(security(folder("bob")), "a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(rpc::reason(status), "ROLE_MISSING");
  EXPECT_THAT(std::string(status.message()), HasSubstr("user:bob"));
}

// Without a certificate, the owner of the connection counts: here another user of this machine.
TEST_F(TlsTest, CallersWithoutACertificateAreNotAdmins) {
  rpc::Security anonymous;
  anonymous.ca = controller_ + "/ca.crt";
  EXPECT_EQ(rpc::reason(submit(anonymous, "a").status()), "ANOTHER_USER");
}

TEST_F(TlsTest, NodeMayOnlyOpenItsSession) {
  certify(authority_, folder("n1"), {Kind::kNode, "n1"});
  const rpc::Security n1 = security(folder("n1"));
  EXPECT_TRUE(register_as(n1, "n1").ok());
  const absl::Status other = register_as(n1, "n2");
  EXPECT_EQ(other.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(rpc::reason(other), "ANOTHER_NODE");
  EXPECT_EQ(rpc::reason(submit(n1, "a").status()), "ROLE_MISSING");
  certify(authority_, folder("alice"), {Kind::kAdmin, "alice"});
  EXPECT_EQ(rpc::reason(register_as(security(folder("alice")), "n1")), "NOT_A_NODE");
}

// A certificate of another authority opens no connection, even if its contents are equal.
TEST_F(TlsTest, CertificatesOfAnotherAuthorityAreRefused) {
  const pki::KeyPair other = pki::make_authority("test", {absl::Now(), absl::Hours(1)}).value();
  certify(other, folder("alice"), {Kind::kAdmin, "alice"});
  rpc::Security mixed = security(folder("alice"));
  mixed.ca = controller_ + "/ca.crt";
  EXPECT_EQ(submit(mixed, "a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(submit(security(folder("alice")), "a").status().code(), absl::StatusCode::kUnavailable);
}

// A node that listens at the controller's address is not taken for it, although it has the same authority.
TEST_F(TlsTest, ClientsRefuseServersWithANodesCertificate) {
  serve_with(controller_ + "/n1", {Kind::kNode, "n1"}, {"127.0.0.1"});
  certify(authority_, folder("alice"), {Kind::kAdmin, "alice"});
  const absl::Status status = submit(security(folder("alice")), "a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("titan:node:n1"));
}

TEST_F(TlsTest, TheControllersHostIsChecked) {
  serve_with(controller_ + "/c2", {Kind::kController, ""}, {"c2.example"});
  certify(authority_, folder("alice"), {Kind::kAdmin, "alice"});
  EXPECT_EQ(submit(security(folder("alice")), "a").status().code(), absl::StatusCode::kUnavailable);
}

// New files take effect while the server runs: here those of another authority, which clients notice.
TEST_F(TlsTest, RotatedFilesTakeEffectWithoutARestart) {
  const pki::KeyPair next = pki::make_authority("next", {absl::Now(), absl::Hours(1)}).value();
  certify(next, folder("alice"), {Kind::kAdmin, "alice"});
  ASSERT_FALSE(submit(security(folder("alice")), "a").ok());
  certify(next, folder("next"), {Kind::kController, ""}, {"127.0.0.1"});
  for (const char* file : {"ca.crt", "tls.crt", "tls.key"}) {
    std::filesystem::rename(folder("next") + "/" + file, controller_ + "/" + file);
  }
  absl::StatusOr<v1::Job> made = absl::UnknownError("not tried");
  for (const absl::Time end = absl::Now() + absl::Seconds(60); !made.ok() && absl::Now() < end;) {
    made = submit(security(folder("alice")), "a");
  }
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->owner(), "user:alice");
}

// TLS checks certificates when a connection is made. Later calls on it are valid as long as the certificates are.
TEST_F(TlsTest, OpenConnectionsEndWhenTheirAuthorityIsReplaced) {
  certify(authority_, folder("alice"), {Kind::kAdmin, "alice"});
  certify(authority_, folder("n1"), {Kind::kNode, "n1"});
  const auto workers = v1::WorkerService::NewStub(connect(security(folder("n1"))));
  grpc::ClientContext session_context, watch_context;
  const auto session = workers->Session(&session_context);
  v1::WorkerMessage message;
  message.mutable_register_()->set_node("n1");
  message.mutable_register_()->set_instance("i");
  session->Write(message);
  v1::ControllerMessage welcome;
  ASSERT_TRUE(session->Read(&welcome) && welcome.has_welcome());
  ASSERT_TRUE(submit(security(folder("alice")), "a").ok());
  const auto watch = jobs_->WatchJobs(&watch_context, {});
  v1::JobChange change;
  ASSERT_TRUE(watch->Read(&change));

  const pki::KeyPair next = pki::make_authority("next", {absl::Now(), absl::Hours(1)}).value();
  certify(next, folder("next"), {Kind::kController, ""}, {"127.0.0.1"});
  std::filesystem::rename(folder("next") + "/ca.crt", controller_ + "/ca.crt");
  while (watch->Read(&change)) {
  }
  EXPECT_EQ(rpc::reason(rpc::from_grpc(watch->Finish())), "CERTIFICATE_UNTRUSTED");
  v1::Job made;
  EXPECT_EQ(rpc::reason(create(job("b"), &made)), "CERTIFICATE_UNTRUSTED");
  message.Clear();
  message.mutable_beat();
  session->Write(message);
  while (session->Read(&welcome)) {
  }
  EXPECT_EQ(rpc::reason(rpc::from_grpc(session->Finish())), "CERTIFICATE_UNTRUSTED");
}

// Open streams and new calls of a node and of an admin end with their own certificates, although their authority is
// valid for hours more.
TEST_F(TlsTest, OpenConnectionsEndWithTheirCertificate) {
  std::atomic<int> shifts = 0;
  gate_.now = [&shifts] { return absl::Now() + absl::Minutes(50 * shifts); };
  certify(authority_, folder("alice"), {Kind::kAdmin, "alice"});
  certify(authority_, folder("n1"), {Kind::kNode, "n1"});
  for (const bool leaf_alone : {false, true}) {
    SCOPED_TRACE(leaf_alone ? "the leaf alone" : "with its authority");
    shifts = 0;
    serve_with(absl::StrCat(controller_, "/again", leaf_alone), {Kind::kController, ""}, {"127.0.0.1"});
    const auto connected = [&](const char* name) {
      return leaf_alone ? connect_with_leaf_alone(folder(name)) : connect(security(folder(name)));
    };
    const auto workers = v1::WorkerService::NewStub(connected("n1"));
    grpc::ClientContext session_context, watch_context, events_context;
    const auto session = workers->Session(&session_context);
    v1::WorkerMessage message;
    message.mutable_register_()->set_node("n1");
    message.mutable_register_()->set_instance("i");
    session->Write(message);
    v1::ControllerMessage reply;
    ASSERT_TRUE(session->Read(&reply) && reply.has_welcome());
    jobs_ = v1::JobService::NewStub(connected("alice"));
    v1::Job made;
    ASSERT_TRUE(create(job(absl::StrCat("a", leaf_alone)), &made).ok());
    const auto watch = jobs_->WatchJobs(&watch_context, {});
    v1::JobChange change;
    ASSERT_TRUE(watch->Read(&change));
    v1::ListEventsRequest follow;
    follow.set_follow(true);
    const auto events = jobs_->ListEvents(&events_context, follow);
    v1::Event event;
    ASSERT_TRUE(events->Read(&event));

    shifts = 1;
    EXPECT_TRUE(create(job(absl::StrCat("b", leaf_alone)), &made).ok());
    shifts = 2;
    EXPECT_EQ(rpc::reason(create(job(absl::StrCat("c", leaf_alone)), &made)), "CERTIFICATE_ENDED");
    while (watch->Read(&change)) {
    }
    EXPECT_EQ(rpc::reason(rpc::from_grpc(watch->Finish())), "CERTIFICATE_ENDED");
    while (events->Read(&event)) {
    }
    EXPECT_EQ(rpc::reason(rpc::from_grpc(events->Finish())), "CERTIFICATE_ENDED");
    message.Clear();
    message.mutable_beat();
    session->Write(message);
    while (session->Read(&reply)) {
    }
    EXPECT_EQ(rpc::reason(rpc::from_grpc(session->Finish())), "CERTIFICATE_ENDED");
  }
  stop();  // Before the clock that it uses goes out of scope.
}

}  // namespace
}  // namespace titan::api
