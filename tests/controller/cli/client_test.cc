#include "controller/cli/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace titan::cli {
namespace {

// A controller that may lose its first answer to a deletion, before or after it has deleted the job.
class Jobs : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request, v1::Job* job) override {
    if (!there) return {grpc::StatusCode::NOT_FOUND, "no such job"};
    job->set_name("jobs/" + request->name());
    return grpc::Status::OK;
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest* request, v1::Job* job) override {
    ++deletions;
    if (deletions == 1 && loses_request) return {grpc::StatusCode::UNAVAILABLE, "lost"};
    if (!there) return {grpc::StatusCode::NOT_FOUND, "no such job"};
    there = false;
    if (deletions == 1 && loses_answer) return {grpc::StatusCode::UNAVAILABLE, "lost"};
    job->set_name(request->name());
    return grpc::Status::OK;
  }

  std::atomic<bool> there = true, loses_request = false, loses_answer = false;
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

TEST_F(ClientTest, DeletesOnceWhateverIsLost) {
  for (const bool request_lost : {false, true}) {
    for (const bool answer_lost : {false, true}) {
      jobs_.there = true;
      jobs_.deletions = 0;
      jobs_.loses_request = request_lost;
      jobs_.loses_answer = answer_lost;
      const auto deleted = Client(address_, absl::Seconds(20)).delete_job("a");
      ASSERT_TRUE(deleted.ok()) << deleted.status() << " " << request_lost << answer_lost;
      EXPECT_TRUE(deleted->name() == "jobs/a" || deleted->name() == "a") << deleted->name();
      EXPECT_FALSE(jobs_.there);
    }
  }
}

TEST_F(ClientTest, AJobThatWasNeverThereIsNotDeleted) {
  jobs_.there = false;
  EXPECT_TRUE(absl::IsNotFound(Client(address_, absl::Seconds(20)).delete_job("a").status()));
  EXPECT_EQ(jobs_.deletions, 0);
}

// Its connections were refused and it pauses between its tries: gRPC then sees nothing of a connection that is made.
TEST_F(ClientTest, FindsAControllerThatComesBack) {
  using std::chrono::steady_clock;
  const std::string address = address_;
  server_->Shutdown();
  steady_clock::time_point back;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // Of an outage.
    serve(address);
    back = steady_clock::now();
  });
  const auto job = Client(address, absl::Seconds(30)).get_job("a");
  const auto answered = steady_clock::now();
  later.join();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_LT(answered - back, std::chrono::seconds(2)) << "it took 4.9 s when nobody waited for the connection";
}

}  // namespace
}  // namespace titan::cli
