#include <atomic>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/sync/sync.h"
#include "common/service/rpc/error.h"
#include "controller/api/server.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "titan/v1/cluster.grpc.pb.h"

namespace titan::api {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::unique_ptr<v1::ClusterService::Stub> stub_of(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  return v1::ClusterService::NewStub(
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments));
}

grpc::Status call(v1::ClusterService::Stub& stub) {
  grpc::ClientContext context;
  context.set_wait_for_ready(false);
  v1::Cluster cluster;
  return stub.GetCluster(&context, v1::GetClusterRequest(), &cluster);
}

TEST(StandbyTest, NamesTheLeader) {
  const auto standby = *Standby::start("127.0.0.1:0", [] { return std::string("other:7700"); });
  const absl::Status status = rpc::from_grpc(call(*stub_of(standby->port())));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rpc::reason(status), "NOT_LEADER");
  EXPECT_GT(rpc::retry_delay(status), absl::ZeroDuration());
  EXPECT_THAT(rpc::metadata(status), Contains(std::pair<std::string, std::string>("leader", "other:7700")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("other:7700 leads"));
}

TEST(StandbyTest, ATakenAddressIsAnError) {
  const auto standby = *Standby::start("127.0.0.1:0", [] { return std::string(); });
  const auto second = Standby::start(absl::StrCat("127.0.0.1:", standby->port()), [] { return std::string(); });
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

// At any moment, including the end of the server, clients get only codes after which they retry.
TEST(StandbyTest, StoppingGivesOnlyCodesToRetry) {
  std::map<int, int> codes;
  sync::Mutex mutex;
  auto standby = *Standby::start("127.0.0.1:0", [] { return std::string("other:7700"); });
  const int port = standby->port();
  std::atomic<bool> over{false};
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      const auto stub = stub_of(port);
      while (!over) {
        const grpc::Status status = call(*stub);
        ++calls;
        sync::Lock lock(mutex);
        ++codes[static_cast<int>(status.error_code())];
      }
    });
  }
  for (int round = 0; round < 40; ++round) {
    const int before = calls;
    while (calls < before + 20) std::this_thread::yield();
    standby.reset();
    standby = *Standby::start(absl::StrCat("127.0.0.1:", port), [] { return std::string("other:7700"); });
  }
  over = true;
  for (std::thread& caller : callers) caller.join();
  codes.erase(static_cast<int>(grpc::StatusCode::CANCELLED));
  EXPECT_EQ(codes.size(), 1u) << ::testing::PrintToString(codes);
  EXPECT_TRUE(codes.contains(static_cast<int>(grpc::StatusCode::UNAVAILABLE))) << ::testing::PrintToString(codes);
}

}  // namespace
}  // namespace titan::api
