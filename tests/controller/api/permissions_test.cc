// Every method of every service has a permission row, and its handler checks it.

#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/digest/digest.h"
#include "controller/auth/caller.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/controller/api/tls_case.h"
#include "titan/v1/auth.grpc.pb.h"

namespace titan::api {
namespace {

using auth::Need;
using auth::Permission;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;

std::vector<const MethodDescriptor*> methods() {
  std::vector<const MethodDescriptor*> all;
  for (const FileDescriptor* file :
       {v1::Token::descriptor()->file(), v1::Cluster::descriptor()->file(), v1::Job::descriptor()->file(),
        v1::Node::descriptor()->file(), v1::Register::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int k = 0; k < file->service(i)->method_count(); ++k) all.push_back(file->service(i)->method(k));
    }
  }
  return all;
}

std::string name_of(const MethodDescriptor& method) {
  return absl::StrCat(method.service()->name(), ".", method.name());
}

TEST(PermissionsTest, EveryMethodHasOneRowAndEveryRowAMethod) {
  std::set<std::string> found, rows;
  for (const MethodDescriptor* method : methods()) {
    EXPECT_EQ(method->file()->package(), "titan.v1");
    found.insert(name_of(*method));
    EXPECT_TRUE(auth::permission(name_of(*method))) << name_of(*method) << " is in no row of caller.cc";
  }
  for (const Permission& row : auth::permissions())
    EXPECT_TRUE(rows.insert(std::string(row.method)).second) << row.method;
  EXPECT_EQ(found, rows);
}

// Requests are bytes, so that a new method needs no line here.
class EveryMethodTest : public TlsCase {
 protected:
  void SetUp() override {
    TlsCase::SetUp();
    certify(authority_, folder("root"), {rpc::Identity::Kind::kAdmin, "root"});
    certify(authority_, folder("n1"), {rpc::Identity::Kind::kNode, "n1"});
    anonymous_.ca = controller_ + "/ca.crt";
    make("viewer00", v1::Token::VIEWER, "*");
    make("operator", v1::Token::OPERATOR, "elsewhere");
  }

  void make(const std::string& id, v1::Token::Role role, const std::string& project) {
    v1::CreateTokenRequest request;
    request.mutable_token()->set_id(id);
    request.mutable_token()->set_user(id);
    request.mutable_token()->set_role(role);
    request.mutable_token()->add_projects(project);
    request.set_secret_sha256(digest::sha256("00"));
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    v1::Token token;
    const auto stub = v1::AuthService::NewStub(connect(security(folder("root"))));
    const grpc::Status made = stub->CreateToken(&context, request, &token);
    ASSERT_TRUE(made.ok()) << made.error_message();
  }

  // Returns the least that a handler needs to get as far as the project.
  static std::string request_of(const std::string& method) {
    return method == "JobService.CreateJob" ? job("a").SerializeAsString() : "";
  }

  // Returns the status at the end of the call, or OK if the call answers something first.
  absl::Status call(const std::shared_ptr<grpc::Channel>& channel, const MethodDescriptor& method,
                    const std::string& token) {
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer titan_", token, "_00"));
    const std::string path = absl::StrCat("/", method.service()->full_name(), "/", method.name());
    const auto call = stub.PrepareCall(&context, path, &queue);
    const auto done = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    grpc::Status status;
    bool answered = false;
    if (done()) {
      const grpc::Slice slice(request_of(name_of(method)));
      call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
      done();
      grpc::ByteBuffer answer;
      call->Read(&answer, nullptr);
      answered = done();
    }
    if (answered) context.TryCancel();
    call->Finish(&status, nullptr);
    done();
    return answered ? absl::OkStatus() : rpc::from_grpc(status);
  }

  static bool is_refusal(const absl::Status& status) {
    return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
  }
  void expect_refused(const rpc::Security& as, const std::string& token,
                      const std::function<bool(const Permission&)>& may) {
    const std::shared_ptr<grpc::Channel> channel = connect(as);
    for (const MethodDescriptor* method : methods()) {
      const absl::Status status = call(channel, *method, token);
      const std::string name = name_of(*method);
      EXPECT_EQ(is_refusal(status), !may(*auth::permission(name))) << name << ": " << status;
      if (!is_refusal(status)) continue;
      EXPECT_NE(rpc::reason(status), "") << name;
    }
  }

  rpc::Security anonymous_;
};

TEST_F(EveryMethodTest, UnknownCallersMayCallNothing) {
  expect_refused(anonymous_, "", [](const Permission&) { return false; });
  expect_refused(anonymous_, "nosuchtoken", [](const Permission&) { return false; });
}

TEST_F(EveryMethodTest, ViewersMayOnlyRead) {
  expect_refused(anonymous_, "viewer00", [](const Permission& row) { return row.need == Need::kRead; });
}

// An operator of another project may do nothing in this one, and sees only what belongs to no project.
TEST_F(EveryMethodTest, AnOperatorOfAnotherProjectMayNotTouchThisOne) {
  const std::set<absl::string_view> of_a_job = {"JobService.GetJob", "JobService.TailLogs", "JobService.GetDiagnosis"};
  expect_refused(anonymous_, "operator", [&of_a_job](const Permission& row) {
    return row.need == Need::kRead && of_a_job.count(row.method) == 0;
  });
}

TEST_F(EveryMethodTest, NodesMayOnlyOpenSessions) {
  expect_refused(security(folder("n1")), "", [](const Permission& row) { return row.need == Need::kSession; });
  // A token does not help either.
  expect_refused(security(folder("n1")), "viewer00", [](const Permission& row) { return row.need == Need::kSession; });
}

TEST_F(EveryMethodTest, AdminsMayDoAllButOpenSessions) {
  expect_refused(security(folder("root")), "", [](const Permission& row) { return row.need != Need::kSession; });
}

}  // namespace
}  // namespace titan::api
