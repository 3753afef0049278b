#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "controller/cli/client.h"
#include "controller/cli/globals.h"
#include "controller/cli/token_commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

using ::testing::HasSubstr;

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() { mkdtemp(folder_.data()); }
  ~AccessTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& text, mode_t mode) const {
    std::string path = folder_ + "/token";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }

  std::string folder_ = ::testing::TempDir() + "titan-access-XXXXXX";
};

TEST_F(AccessTest, TokenFilesMustBePrivate) {
  EXPECT_EQ(read_token(file("titan_abcdefgh_00ff\n", 0600)).value(), "titan_abcdefgh_00ff");
  for (const mode_t mode : {0640U, 0604U, 0644U, 0620U}) {
    const absl::Status status = read_token(file("titan_abcdefgh_00ff\n", mode)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << mode;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 600"));
  }
}

TEST_F(AccessTest, BadTokensAreNotSent) {
  EXPECT_EQ(read_token(folder_ + "/none").status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "secret", "titan_a b", "titan_a\ntitan_b"}) {
    EXPECT_EQ(read_token(file(text, 0600)).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

// Holds even with --insecure: anyone who reads a token can use it.
TEST_F(AccessTest, ATokenIsNotSentInPlaintextBeyondThisMachine) {
  Access access;
  access.token_file = file("titan_abcdefgh_00ff\n", 0600);
  access.security.insecure = true;
  EXPECT_TRUE(ControllerClient("127.0.0.1:1", absl::Seconds(1), access).check().ok());
  EXPECT_TRUE(ControllerClient("unix:/tmp/s", absl::Seconds(1), access).check().ok());
  const absl::Status status = ControllerClient("127.0.0.1:1,192.0.2.1:1", absl::Seconds(1), access).check();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1:1"));
}

TEST_F(AccessTest, LifetimesHaveUnits) {
  EXPECT_EQ(parse_lifetime("30d").value(), absl::Hours(720));
  EXPECT_EQ(parse_lifetime("90m").value(), absl::Minutes(90));
  for (const char* bad : {"", "d", "30", "0d", "-1d", "1.5d", "30y", "99999999d"}) {
    EXPECT_EQ(parse_lifetime(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace titan::cli
