// Every method rejects a request that cannot be decoded, lacks a name or has an invalid enum, integer or request_id.

#include "controller/api/request_check.h"

#include <google/protobuf/dynamic_message.h>

#include <set>

#include "controller/api/services.h"
#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using ::testing::HasSubstr;

constexpr int kNoValue = 77;
constexpr int kMaxDepth = 6;

class RequestCheckTest : public ServiceCase {
 protected:
  // Calls `act` for each method that accepts a single request.
  template <typename Do>
  static void each_method(const Do& act) {
    for (const google::protobuf::ServiceDescriptor* service : services()) {
      for (int i = 0; i < service->method_count(); ++i) {
        if (!service->method(i)->client_streaming()) act(*service->method(i));
      }
    }
  }
  absl::Status answer_to(const MethodDescriptor& method, const std::string& bytes) {
    grpc::ByteBuffer answer;
    return rpc::from_grpc(
        call_by_name(absl::StrCat("/", method.service()->full_name(), "/", method.name()), grpc::Slice(bytes), answer));
  }
};

struct Planted {
  std::string path;
  std::string bytes;
};

// Returns a copy of the request for each enum in it, at any depth, with an unknown number in that enum.
void plant(Message& root, Message& message, const std::string& prefix, int depth, std::vector<Planted>& out) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string path = absl::StrCat(prefix, field->name(), field->is_repeated() ? "[0]" : "");
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      field->is_repeated() ? reflection.AddEnumValue(&message, field, kNoValue)
                           : reflection.SetEnumValue(&message, field, kNoValue);
      out.push_back({path, root.SerializeAsString()});
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map() && depth < kMaxDepth) {
      plant(
          root,
          field->is_repeated() ? *reflection.AddMessage(&message, field) : *reflection.MutableMessage(&message, field),
          path + ".", depth + 1, out);
    }
    reflection.ClearField(&message, field);
  }
}

TEST_F(RequestCheckTest, UnknownEnumValuesOfEveryRequestAreRefused) {
  int found = 0;
  each_method([&](const MethodDescriptor& method) {
    google::protobuf::DynamicMessageFactory factory;
    const std::unique_ptr<Message> request(factory.GetPrototype(method.input_type())->New());
    std::vector<Planted> planted;
    plant(*request, *request, "", 0, planted);
    for (const Planted& one : planted) {
      const absl::Status status = answer_to(method, one.bytes);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << method.name() << " " << one.path;
      EXPECT_EQ(rpc::reason(status), "ENUM_VALUE_UNKNOWN") << method.name() << " " << one.path;
      const std::vector<rpc::FieldViolation> violations = rpc::field_violations(status);
      ASSERT_EQ(violations.size(), 1) << method.name() << " " << one.path;
      EXPECT_EQ(violations[0].field, one.path) << method.name();
      EXPECT_THAT(violations[0].description, HasSubstr("is 77")) << method.name();
      ++found;
    }
  });
  EXPECT_GE(found, 4) << "the checked requests have enum fields";
}

// Returns copies of the request: for each integer one with an invalid value, and for each request_id one that is not a
// UUID.
void plant_values(Message& request, std::vector<Planted>& out) {
  const google::protobuf::Reflection& reflection = *request.GetReflection();
  for (int i = 0; i < request.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = request.GetDescriptor()->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      field->is_repeated() ? reflection.AddInt32(&request, field, -5) : reflection.SetInt32(&request, field, -5);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      field->is_repeated() ? reflection.AddInt64(&request, field, -5) : reflection.SetInt64(&request, field, -5);
    } else if (field->name() == "request_id") {
      reflection.SetString(&request, field, "not-a-uuid");
    } else {
      continue;
    }
    out.push_back({absl::StrCat(field->name(), field->is_repeated() ? "[0]" : ""), request.SerializeAsString()});
    reflection.ClearField(&request, field);
  }
}

TEST_F(RequestCheckTest, EveryIntegerAndRequestIdOfEveryRequestIsChecked) {
  std::set<std::string> found;
  each_method([&](const MethodDescriptor& method) {
    google::protobuf::DynamicMessageFactory factory;
    const std::unique_ptr<Message> request(factory.GetPrototype(method.input_type())->New());
    std::vector<Planted> planted;
    plant_values(*request, planted);
    for (const Planted& one : planted) {
      const absl::Status status = answer_to(method, one.bytes);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << method.name() << " " << one.path;
      const std::vector<rpc::FieldViolation> violations = rpc::field_violations(status);
      ASSERT_EQ(violations.size(), 1) << method.name() << " " << one.path;
      EXPECT_EQ(violations[0].field, one.path) << method.name();
      found.insert(absl::StrCat(method.name(), ".", one.path));
    }
  });
  EXPECT_THAT(found, ::testing::IsSupersetOf({"ListEvents.revision", "WatchJobs.revision", "TailLogs.tail_lines",
                                              "TailLogs.attempt", "GetDiagnosis.attempt", "CancelJob.request_id",
                                              "CreateJob.request_id", "ProfileJob.request_id"}));
}

// A request without a name is invalid; NOT_FOUND would mean that the job or node is gone.
TEST_F(RequestCheckTest, NamesAreRequired) {
  for (const char* method :
       {"GetJob", "CancelJob", "DeleteJob", "CheckpointJob", "ProfileJob", "TailLogs", "GetDiagnosis", "GetNode",
        "CordonNode", "UncordonNode", "DrainNode", "DeleteNode", "StopUnknown"}) {
    each_method([&](const MethodDescriptor& found) {
      if (found.name() != method) return;
      const absl::Status status = answer_to(found, "");
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << method << " " << status;
      EXPECT_EQ(rpc::reason(status), "NAME_MISSING") << method;
    });
  }
  v1::ListJobsRequest list;
  v1::ListJobsResponse answer;
  for (const std::string& project : {std::string("a b"), std::string(100'000, 'a')}) {
    list.set_project(project);
    const absl::Status status = call(&v1::JobService::Stub::ListJobs, list, &answer);
    EXPECT_EQ(rpc::reason(status), "PROJECT_INVALID") << status.message().size();
    EXPECT_LT(status.message().size(), 500);
  }
}

TEST_F(RequestCheckTest, KnownValuesPass) {
  v1::CreateJobRequest request;
  request.mutable_source()->set_format(v1::JobText::TOML);
  EXPECT_TRUE(check_fields(request).ok());
  request.mutable_source()->set_format(static_cast<v1::JobText::Format>(-1));
  EXPECT_THAT(std::string(check_fields(request).message()), HasSubstr("TOML = 1"));
  v1::TailLogsRequest tail;
  tail.set_tail_lines(-1);
  EXPECT_TRUE(check_fields(tail).ok());
  v1::CancelJobRequest cancel;
  EXPECT_TRUE(check_fields(cancel).ok()) << "the request_id is optional";
  cancel.set_request_id("5B0c8f3e-0000-4000-8000-00000000000f");
  EXPECT_TRUE(check_fields(cancel).ok());
}

// An empty answer would look like a valid one.
TEST_F(RequestCheckTest, ListsRefuseTheUnspecifiedState) {
  v1::ListJobsRequest request;
  request.add_states(v1::Job::RUNNING);
  request.add_states(v1::Job::STATE_UNSPECIFIED);
  v1::ListJobsResponse response;
  const absl::Status status = call(&v1::JobService::Stub::ListJobs, request, &response);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(rpc::field_violations(status).size(), 1);
  EXPECT_EQ(rpc::field_violations(status)[0].field, "states[1]");
}

// gRPC's own answer is UNIMPLEMENTED without a message, which clients take for a controller of an older version.
TEST_F(RequestCheckTest, UndecodableRequestsAreInvalidArguments) {
  const std::string cut_off = "\x0a\x20short", not_utf8 = "\x0a\x02\xff\xfe";
  each_method([&](const MethodDescriptor& method) {
    const absl::Status status = answer_to(method, cut_off);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << method.full_name();
    EXPECT_EQ(rpc::reason(status), "REQUEST_UNDECODABLE") << method.full_name();
    EXPECT_THAT(std::string(status.message()), HasSubstr(method.input_type()->full_name()));
  });
  const MethodDescriptor* get =
      v1::GetJobRequest::descriptor()->file()->FindServiceByName("JobService")->FindMethodByName("GetJob");
  EXPECT_EQ(rpc::reason(answer_to(*get, not_utf8)), "REQUEST_UNDECODABLE");
}

// Requests that cannot be decoded do not wear the server out: it still answers later calls.
TEST_F(RequestCheckTest, LaterCallsAreAnswered) {
  const MethodDescriptor* get =
      v1::GetJobRequest::descriptor()->file()->FindServiceByName("JobService")->FindMethodByName("GetJob");
  for (int i = 0; i < 50; ++i) EXPECT_EQ(rpc::reason(answer_to(*get, "\xff")), "REQUEST_UNDECODABLE");
  v1::Job made;
  EXPECT_TRUE(create(job("a"), &made).ok());
}

}  // namespace
}  // namespace titan::api
