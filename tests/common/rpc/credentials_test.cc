#include "common/rpc/credentials.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::rpc {
namespace {

using ::testing::HasSubstr;

TEST(CredentialsTest, PlaintextStaysOnThisMachine) {
  for (const char* local : {"127.0.0.1:7700", "[::1]:0", "localhost:7700", "unix:/tmp/s"}) {
    EXPECT_TRUE(channel_credentials(local, {}).ok()) << local;
    EXPECT_TRUE(server_credentials(local, {}).ok()) << local;
  }
  for (const char* other : {"0.0.0.0:7700", "[::]:7700", "*:7700", "10.0.0.1:7700", "controller:7700"}) {
    const absl::Status to = channel_credentials(other, {}).status();
    EXPECT_EQ(to.code(), absl::StatusCode::kInvalidArgument) << other;
    EXPECT_THAT(std::string(to.message()), HasSubstr("--insecure"));
    const absl::Status at = server_credentials(other, {}).status();
    EXPECT_EQ(at.code(), absl::StatusCode::kInvalidArgument) << other;
    EXPECT_THAT(std::string(at.message()), HasSubstr("--insecure"));
    Security open;
    open.insecure = true;
    EXPECT_TRUE(channel_credentials(other, open).ok()) << other;
    EXPECT_TRUE(server_credentials(other, open).ok()) << other;
  }
}

}  // namespace
}  // namespace titan::rpc
