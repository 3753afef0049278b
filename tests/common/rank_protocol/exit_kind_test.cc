// This order decides which rank is blamed for the end of an attempt: the controller takes the lowest kind of all its
// exits.

#include <csignal>
#include <vector>

#include "common/rank_protocol/failed_ranks.h"
#include "gtest/gtest.h"

namespace titan::rank_protocol {
namespace {

TEST(ExitKindTest, CausesComeBeforeConsequences) {
  struct End {
    int exit_code = 0, signal = 0;
    bool out_of_memory = false;
  };
  const std::vector<End> most_specific_first = {
      {kExitBadConfig}, {kExitUserError}, {kExitOutOfMemory}, {kExitStorage},  {kExitFenced},
      {kExitInternal},  {-1, SIGSEGV},    {kExitPeerLost},    {kExitFinished},
  };
  for (size_t i = 1; i < most_specific_first.size(); ++i) {
    const End &before = most_specific_first[i - 1], &after = most_specific_first[i];
    EXPECT_LT(exit_kind(before.exit_code, before.signal), exit_kind(after.exit_code, after.signal))
        << before.exit_code << ", " << after.exit_code;
  }
}

TEST(ExitKindTest, EveryExitHasAKind) {
  EXPECT_EQ(exit_kind(kExitUsage, 0), ExitKind::kBadConfig);
  EXPECT_EQ(exit_kind(-1, SIGKILL, /*out_of_memory=*/true), ExitKind::kOutOfMemory);
  EXPECT_EQ(exit_kind(kExitPeerLost, SIGKILL), ExitKind::kKilled) << "a signal leaves no exit code";
  for (const int code : {3, 127, 255}) EXPECT_EQ(exit_kind(code, 0), ExitKind::kFailed) << code;
}

TEST(ExitKindTest, OnlyRequestedExitsAreNotFailures) {
  EXPECT_TRUE(ended_as_expected(kExitFinished, 0));
  EXPECT_TRUE(ended_as_expected(kExitStopped, 0));
  EXPECT_FALSE(ended_as_expected(kExitFinished, SIGTERM));
  EXPECT_FALSE(ended_as_expected(kExitPeerLost, 0));
}

}  // namespace
}  // namespace titan::rank_protocol
