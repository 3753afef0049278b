// No request of an unknown caller is read: the call is rejected first.

#include "controller/api/services.h"
#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

class AdmitFirstTest : public ServiceCase {
 protected:
  void SetUp() override {
    gate_.owner = [this](const auth::LocalConnection&) -> absl::StatusOr<uid_t> { return owner_; };
    ServiceCase::SetUp();
  }
  // Returns the status of a call for which the client sends no request and does not half-close.
  absl::Status call_without_request(const std::string& method) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(&tag);
    queue.Next(&tag, &ok);
    grpc::ByteBuffer answer;  // gRPC reports the end of a call only after a pending answer was read.
    call->Read(&answer, &tag);
    queue.Next(&tag, &ok);
    grpc::Status status;
    call->Finish(&status, &tag);
    queue.Next(&tag, &ok);
    return rpc::from_grpc(status);
  }

  uid_t owner_ = geteuid() + 1;
};

TEST_F(AdmitFirstTest, EveryMethodRefusesStrangersBeforeReadingARequest) {
  for (const google::protobuf::ServiceDescriptor* service : services()) {
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string method = absl::StrCat("/", service->full_name(), "/", service->method(i)->name());
      EXPECT_EQ(rpc::reason(call_without_request(method)), "ANOTHER_USER") << method;
    }
  }
}

// Health reports the server's state to strangers without reading their request; reflection rejects them.
TEST_F(AdmitFirstTest, GrpcServicesReadNoRequestOfStrangers) {
  EXPECT_TRUE(call_without_request("/grpc.health.v1.Health/Check").ok());
  EXPECT_EQ(call_without_request("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo").code(),
            absl::StatusCode::kCancelled);
}

TEST_F(AdmitFirstTest, KnownCallersSeeHealthOfAService) {
  owner_ = geteuid();
  grpc::ByteBuffer answer;
  EXPECT_TRUE(call_by_name("/grpc.health.v1.Health/Check", grpc::Slice(), answer).ok());
  EXPECT_EQ(call_by_name("/grpc.health.v1.Health/Check", grpc::Slice("\x0a\x06nosuch", 8), answer).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// A large request of a known caller is read in full and answered.
TEST_F(AdmitFirstTest, ALargeRequestOfAKnownCallerIsAnswered) {
  owner_ = geteuid();
  v1::CreateJobRequest request = job("a");
  request.mutable_spec()->set_config_source(std::string(512 << 10, '#'));
  v1::Job made;
  EXPECT_TRUE(create(request, &made).ok());
  EXPECT_EQ(made.name(), "projects/default/jobs/a");
}

}  // namespace
}  // namespace titan::api
