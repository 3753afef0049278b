#include "common/service/rpc/credentials.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

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

// The folder of a user with a token contains only the authority; a flag that names a file overrides the folder.
TEST(CredentialsTest, FolderSuppliesFilesWithoutFlags) {
  std::string folder = (std::filesystem::temp_directory_path() / "titan-tls-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  Security user;
  user.folder = folder;
  use_folder(user);
  EXPECT_EQ(user.ca, folder + "/ca.crt");
  EXPECT_EQ(user.cert + user.key, "");
  for (const char* file : {"/tls.crt", "/tls.key"}) std::ofstream(folder + file) << "x";
  Security node, other;
  node.folder = other.folder = folder;
  other.ca = "/other.crt";
  use_folder(node);
  use_folder(other);
  EXPECT_EQ(node.cert, folder + "/tls.crt");
  EXPECT_EQ(node.key, folder + "/tls.key");
  EXPECT_EQ(other.ca, "/other.crt");
  EXPECT_EQ(other.key, folder + "/tls.key");
  Security none;
  use_folder(none);
  EXPECT_FALSE(none.tls());
  std::filesystem::remove_all(folder);
}

// Without this check gRPC would fail every connection, as if no server listened.
TEST(CredentialsTest, FileWithoutValidContentIsNamed) {
  std::string folder = (std::filesystem::temp_directory_path() / "titan-tls-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/empty");
  std::ofstream(folder + "/key") << "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n";
  for (const std::string& ca : {folder, folder + "/empty", folder + "/key"}) {
    Security security;
    security.ca = ca;
    const absl::Status refused = channel_credentials("controller:7700", security).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_EQ(refused.message(), "--tls-ca " + ca + " holds no certificate in PEM format");
    security.cert = security.key = ca;
    EXPECT_EQ(server_credentials("controller:7700", security).status().message(), refused.message());
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace titan::rpc
