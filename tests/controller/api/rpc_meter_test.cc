// Call metrics are labeled by method and code, and never contain names that a client made up.

#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RpcMeterTest : public ServiceCase {
 protected:
  // Waits for the line, because the end of a call is counted a moment after the client has its answer.
  bool shows(const std::string& line) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (metrics_.text().find(line) == std::string::npos) {
      if (absl::Now() > end) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }
  grpc::Status call_unknown(const std::string& method) {
    grpc::ByteBuffer answer;
    return call_by_name(method, grpc::Slice(""), answer);
  }
};

TEST_F(RpcMeterTest, UnaryCallsByMethodAndCode) {
  EXPECT_THAT(metrics_.text(),
              HasSubstr("titan_rpc_duration_seconds_count{code=\"OK\",method=\"JobService/GetJob\"} 0"));
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  ASSERT_TRUE(get(created.name()).ok());
  ASSERT_TRUE(get(created.name()).ok());
  EXPECT_TRUE(absl::IsNotFound(get("nothing").status()));
  EXPECT_TRUE(shows("titan_rpc_duration_seconds_count{code=\"OK\",method=\"JobService/CreateJob\"} 1"));
  EXPECT_TRUE(shows("titan_rpc_duration_seconds_count{code=\"OK\",method=\"JobService/GetJob\"} 2"));
  EXPECT_TRUE(shows("titan_rpc_duration_seconds_count{code=\"NOT_FOUND\",method=\"JobService/GetJob\"} 1"));
}

TEST_F(RpcMeterTest, CountsStreamsBegunEndedAndOpen) {
  EXPECT_THAT(metrics_.text(), HasSubstr("titan_rpc_open_streams{method=\"JobService/WatchJobs\"} 0"));
  grpc::ClientContext context;
  auto watch = jobs_->WatchJobs(&context, v1::WatchJobsRequest());
  v1::JobChange change;
  ASSERT_TRUE(watch->Read(&change));
  EXPECT_TRUE(shows("titan_rpc_open_streams{method=\"JobService/WatchJobs\"} 1"));
  EXPECT_TRUE(shows("titan_rpc_streams_begun_total{method=\"JobService/WatchJobs\"} 1"));
  context.TryCancel();
  EXPECT_FALSE(watch->Finish().ok());
  EXPECT_TRUE(shows("titan_rpc_open_streams{method=\"JobService/WatchJobs\"} 0"));
  EXPECT_TRUE(shows("titan_rpc_streams_ended_total{code=\"CANCELLED\",method=\"JobService/WatchJobs\"} 1"));
  grpc::ClientContext events_context;
  auto events = jobs_->ListEvents(&events_context, v1::ListEventsRequest());
  v1::Event event;
  while (events->Read(&event)) continue;
  EXPECT_TRUE(events->Finish().ok());
  EXPECT_TRUE(shows("titan_rpc_streams_ended_total{code=\"OK\",method=\"JobService/ListEvents\"} 1"));
}

TEST_F(RpcMeterTest, UnknownMethodNamesAreNotOnThePage) {
  EXPECT_EQ(call_unknown("/titan.v1.JobService/NoSuchMethod").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(call_unknown("/grpc.health.v1.Health/Check").ok());
  EXPECT_TRUE(shows("titan_rpc_duration_seconds_count{code=\"OK\",method=\"other\"} 1"));
  EXPECT_THAT(metrics_.text(), Not(HasSubstr("NoSuchMethod")));
}

}  // namespace
}  // namespace titan::api
