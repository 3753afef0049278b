#include "worker/node/daemon/rank_environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kDaemonEnvironment[] = {"PATH=/bin",
                                              "HOME=/root",
                                              "LC_ALL=C",
                                              "NCCL_DEBUG=INFO",
                                              "OMP_WAIT_POLICY=passive",
                                              "TITAN_RANK_LEVEL=avx2",
                                              "LC=no",
                                              "AWS_ENDPOINT_URL=https://store",
                                              "AWS_SECRET_ACCESS_KEY=s",
                                              "WANDB_API_KEY=k",
                                              "SITE_A=1",
                                              "SITE_B=2",
                                              "EDITOR",
                                              "NOTIFY_SOCKET=/run/n",
                                              "WATCHDOG_USEC=1",
                                              "JOURNAL_STREAM=8:1",
                                              "CREDENTIALS_DIRECTORY=/run/c",
                                              "TITAN_TOKEN_FILE=/etc/token",
                                              "TITAN_TLS_KEY=/etc/key",
                                              "TITAN_CONTROLLER=c1:7700",
                                              nullptr};

// A secret in the daemon's environment reaches a rank only if it is requested by its full name.
TEST(RankEnvironmentTest, HasNeededAndRequestedVariables) {
  EXPECT_THAT(rank_environment(kDaemonEnvironment, {}),
              ElementsAre("PATH=/bin", "HOME=/root", "LC_ALL=C", "NCCL_DEBUG=INFO", "OMP_WAIT_POLICY=passive",
                          "TITAN_RANK_LEVEL=avx2", "AWS_ENDPOINT_URL=https://store"));
  EXPECT_THAT(rank_environment(kDaemonEnvironment, {"SITE_*", "EDITOR"}),
              ElementsAre("PATH=/bin", "HOME=/root", "LC_ALL=C", "NCCL_DEBUG=INFO", "OMP_WAIT_POLICY=passive",
                          "TITAN_RANK_LEVEL=avx2", "AWS_ENDPOINT_URL=https://store", "SITE_A=1", "SITE_B=2", "EDITOR"));
}

// A secret of the worker's operator is passed only by its full name, never by a pattern other than "*".
TEST(RankEnvironmentTest, SecretsMustBeNamedInFull) {
  constexpr const char* kSecret[] = {"HF_TOKEN=t",
                                     "NVIDIA_API_KEY=k",
                                     "NVIDIA_APIKEY=k",
                                     "TORCH_SECRET=s",
                                     "CUDA_PASSWORD=p",
                                     "NCCL_PASSWORD_FILE=f",
                                     "UCX_TOKEN_FILE=f",
                                     "WANDB_API_KEY=k",
                                     "AWS_SECRET_ACCESS_KEY=s",
                                     "AWS_SESSION_TOKEN=s",
                                     "site_password=p",
                                     "TOKEN=t",
                                     nullptr};
  EXPECT_THAT(rank_environment(kSecret, {}), ::testing::IsEmpty());
  EXPECT_THAT(rank_environment(kSecret, {"WANDB_*", "AWS_*", "HF_*", "site_*", "TOK*"}), ::testing::IsEmpty());
  EXPECT_THAT(rank_environment(kSecret, {"HF_TOKEN", "WANDB_API_KEY", "UCX_TOKEN_FILE"}),
              ElementsAre("HF_TOKEN=t", "UCX_TOKEN_FILE=f", "WANDB_API_KEY=k"));
  EXPECT_THAT(rank_environment(kSecret, {"*"}), ::testing::SizeIs(12)) << "as `titanctl run` does";
  constexpr const char* kNone[] = {"HF_HOME=/h",
                                   "HF_TOKEN_PATH=/t",
                                   "NCCL_IB_PKEY=3",
                                   "AWS_SHARED_CREDENTIALS_FILE=/c",
                                   "NVIDIA_VISIBLE_DEVICES=all",
                                   nullptr};
  EXPECT_THAT(rank_environment(kNone, {}), ::testing::SizeIs(5));
}

// Variables that identify the daemon stay with it.
TEST(RankEnvironmentTest, DaemonsOwnVariablesAreNeverPassed) {
  for (const std::string& entry : rank_environment(kDaemonEnvironment, {"*"})) {
    for (const char* own : {"NOTIFY_", "WATCHDOG_", "JOURNAL_", "CREDENTIALS_", "TOKEN_FILE", "TLS_"})
      EXPECT_THAT(entry, ::testing::Not(HasSubstr(own)));
  }
  EXPECT_EQ(check_pass_env("SITE_*"), "");
  EXPECT_THAT(check_pass_env("TITAN_TOKEN_FILE"), HasSubstr("never passed to ranks"));
  for (const char* wrong : {"", "A=1", "A*B", "a b"})
    EXPECT_THAT(check_pass_env(wrong), HasSubstr("not a variable name"));
}

}  // namespace
}  // namespace titan::daemon
