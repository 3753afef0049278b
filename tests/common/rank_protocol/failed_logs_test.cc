// The logs of failed ranks that are kept are few, short and valid text.

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "common/rank_protocol/failed_ranks.h"
#include "common/rank_protocol/launch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::rank_protocol {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(FailedLogsTest, RequestedExitsAreNotFailures) {
  EXPECT_FALSE(has_failed(kExitFinished, 0, ""));
  EXPECT_FALSE(has_failed(kExitStopped, 0, ""));
  EXPECT_FALSE(has_failed(-1, 9, "CANCELLED")) << "its node ended it";
  EXPECT_TRUE(has_failed(-1, 9, ""));
  EXPECT_TRUE(has_failed(-1, 11, ""));
  EXPECT_TRUE(has_failed(kExitPeerLost, 0, ""));
}

TEST(FailedLogsTest, TakesTheFirstOfSimilarFailures) {
  FailedLogs logs;
  EXPECT_TRUE(logs.take(1, 0, "rank 1: bad batch 17"));
  EXPECT_TRUE(logs.take(1, 0, "rank 2: bad batch 18"));
  EXPECT_FALSE(logs.take(1, 0, "rank 3: bad batch 19"));
  EXPECT_TRUE(logs.take(-1, 11, "")) << "another way to fail";
  EXPECT_TRUE(logs.take(kExitPeerLost, 0, "rank 1 is gone"));
  EXPECT_TRUE(logs.take(kExitPeerLost, 0, "the connection to rank 2 was reset"));
  EXPECT_FALSE(logs.take(kExitPeerLost, 0, "a third way to say it"));
}

TEST(FailedLogsTest, NumberOfLogsIsLimited) {
  FailedLogs logs;
  size_t taken = 0;
  for (int rank = 0; rank < 10'000; ++rank) taken += logs.take(1, 0, std::string(static_cast<size_t>(rank), 'x'));
  EXPECT_EQ(taken, kFailedLogs);
}

TEST(FailedLogsTest, KeepsTheEndInWholeLines) {
  std::string log;
  for (int line = 0; line < 1000; ++line) absl::StrAppend(&log, "line ", line, "\n");
  const std::string kept = failed_log(log);
  EXPECT_THAT(kept, StartsWith("line 800\n"));
  EXPECT_THAT(kept, EndsWith("line 999\n"));
  EXPECT_EQ(failed_log("one\ntwo"), "one\ntwo");
  EXPECT_EQ(failed_log(""), "");
}

TEST(FailedLogsTest, StaysWithinItsBytesAndIsText) {
  const auto max_bytes = static_cast<size_t>(kFailedLogBytes);
  std::string umlauts = "x";
  while (umlauts.size() < 2 * max_bytes) umlauts += "\xc3\xa4";
  for (const std::string& log : {std::string(3 * max_bytes, 'a'), std::string(3 * max_bytes, '\xff'),
                                 std::string(3 * max_bytes, '\0'), std::string(max_bytes, 'a') + "\nend\n", umlauts}) {
    const std::string kept = failed_log(log);
    EXPECT_LE(kept.size(), max_bytes);
    EXPECT_FALSE(kept.empty());
    EXPECT_EQ(kept, text::valid_utf8(kept));
    EXPECT_EQ(failed_log(kept), kept) << "shortening it again removes nothing";
  }
  EXPECT_EQ(failed_log(std::string(max_bytes, 'a') + "\nend\n"), "end\n");
}

TEST(FailedLogsTest, LastLines) {
  EXPECT_EQ(last_lines("a\nb\nc\n", 2), "b\nc\n");
  EXPECT_EQ(last_lines("a\nb\nc", 1), "c");
  EXPECT_EQ(last_lines("a\n", 5), "a\n");
  EXPECT_EQ(last_lines("a\nb\n", 0), "");
  EXPECT_EQ(last_lines("", 3), "");
  EXPECT_EQ(last_lines("\n\n", 1), "\n");
}

}  // namespace
}  // namespace titan::rank_protocol
