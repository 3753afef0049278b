#include "controller/cli/client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/service/rpc/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

// A controller that can lose its first answer to a deletion, before or after it has deleted the job.
class Jobs : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request, v1::Job* job) override {
    while (hangs && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    if (!exists) return {grpc::StatusCode::NOT_FOUND, "no such job"};
    job->set_name("jobs/" + request->name());
    return grpc::Status::OK;
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest* request, v1::Job* job) override {
    ++deletions;
    if (deletions == 1 && loses_request) return {grpc::StatusCode::UNAVAILABLE, "lost"};
    if (!exists) return {grpc::StatusCode::NOT_FOUND, "no such job"};
    exists = false;
    if (deletions == 1 && loses_answer) return {grpc::StatusCode::UNAVAILABLE, "lost"};
    job->set_name(request->name());
    return grpc::Status::OK;
  }

  std::atomic<bool> exists = true, hangs = false, loses_request = false, loses_answer = false;
  std::atomic<int> deletions = 0;
};

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() { serve("127.0.0.1:0"); }

  void serve(const std::string& where) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(where, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&jobs_);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  Jobs jobs_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(ClientTest, DeletesOnceDespiteLostMessages) {
  for (const bool request_lost : {false, true}) {
    for (const bool answer_lost : {false, true}) {
      jobs_.exists = true;
      jobs_.deletions = 0;
      jobs_.loses_request = request_lost;
      jobs_.loses_answer = answer_lost;
      const auto deleted = ControllerClient(address_, absl::Seconds(20)).delete_job("a");
      ASSERT_TRUE(deleted.ok()) << deleted.status() << " " << request_lost << answer_lost;
      EXPECT_TRUE(deleted->name() == "jobs/a" || deleted->name() == "a") << deleted->name();
      EXPECT_FALSE(jobs_.exists);
    }
  }
}

TEST_F(ClientTest, MissingJobsAreNotDeleted) {
  jobs_.exists = false;
  EXPECT_TRUE(absl::IsNotFound(ControllerClient(address_, absl::Seconds(20)).delete_job("a").status()));
  EXPECT_EQ(jobs_.deletions, 0);
}

// The kernel of a stopped controller still accepts connections, but nothing answers.
TEST_F(ClientTest, SilentServersAreUnavailable) {
  const int silent = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::listen(silent, 8), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&at), &size), 0);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  // Each connection is tried for 100 ms: some of these timeouts expire in the middle of a try.
  for (const int milliseconds : {30, 120, 250, 400}) {
    const absl::Status status = ControllerClient(address, absl::Milliseconds(milliseconds)).get_job("a").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << milliseconds << " " << status;
    EXPECT_EQ(rpc::reason(status), kNoController) << milliseconds;
  }
  ::close(silent);
}

TEST_F(ClientTest, ConnectedServerThatDoesNotAnswerTimesOut) {
  ControllerClient client(address_, absl::Seconds(2));
  ASSERT_TRUE(client.get_job("a").ok());
  jobs_.hangs = true;
  const absl::Status status = client.get_job("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("no answer from the controller at " + address_));
}

// While connections are refused, gRPC pauses between tries: the client must still notice soon that the controller is
// back.
TEST_F(ClientTest, FindsAControllerThatReturns) {
  using std::chrono::steady_clock;
  const std::string address = address_;
  server_->Shutdown();
  steady_clock::time_point back;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // Length of the outage.
    serve(address);
    back = steady_clock::now();
  });
  const auto job = ControllerClient(address, absl::Seconds(30)).get_job("a");
  const auto answered = steady_clock::now();
  later.join();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_LT(answered - back, std::chrono::seconds(2)) << "it took 4.9 s before the client waited for the connection";
}

}  // namespace
}  // namespace titan::cli
