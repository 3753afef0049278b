// The end of a failed rank's log is reported together with the rank's end, whatever is lost on the way.

#include "common/rank_protocol/failed_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/core/node_world.h"

namespace titan::node {
namespace {

// Returns the log ends reported for each rank since the world last called clear_messages().
std::map<int, std::string> reported_tails(const NodeWorld& world) {
  std::map<int, std::string> tails;
  for (const v1::AttemptReport& report : world.reports()) {
    for (const v1::RankExitReport& exit : report.exits()) {
      if (!exit.log_tail().empty()) tails[exit.rank()] = exit.log_tail();
    }
  }
  return tails;
}

TEST(LogTailTest, IsReportedWithTheExitOfAFailedRank) {
  NodeWorld world;
  world.connect();
  world.launch(1, 2);
  world.printed[1] = "step 3\nSegmentation fault\n";
  world.rank_exits(1, 1, -1, 11);
  world.settle();
  ASSERT_FALSE(world.reports().empty());
  const v1::AttemptReport last_report = world.reports().back();
  ASSERT_EQ(last_report.exits_size(), 1);
  EXPECT_EQ(last_report.exits(0).log_tail(), "step 3\nSegmentation fault\n")
      << "in one message, so that no report lacks it";
}

TEST(LogTailTest, IsNotReportedForOrderlyExits) {
  NodeWorld world;
  world.connect();
  world.launch(1, 2);
  world.rank_exits(1, 0, 0);
  world.stop(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), v1::AttemptReport::ENDED);
  EXPECT_TRUE(reported_tails(world).empty());
  EXPECT_EQ(world.count<ReadLogTail>(), 0);
}

// The rank that a verdict names did not wait for others and had to be ended: users want to read its log.
TEST(LogTailTest, IsReportedForARankNamedByTheVerdict) {
  NodeWorld world;
  world.connect();
  world.launch(1, 3);
  world.printed[1] = "waits for a lock\n";
  world.stop(1, /*save=*/false, /*grace_milliseconds=*/0, /*deadline_milliseconds=*/0, /*named=*/{1, 7});
  world.settle();
  EXPECT_EQ(world.last(1).phase(), v1::AttemptReport::ENDED);
  EXPECT_THAT(reported_tails(world), ::testing::ElementsAre(::testing::Pair(1, "waits for a lock\n")));
}

// Each session gets the log end once, because a new leader may lack what the previous one received.
TEST(LogTailTest, IsReportedOncePerSessionUntilForgotten) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.rank_exits(1, 0, 1);
  world.settle();
  EXPECT_EQ(reported_tails(world).size(), 1U);
  world.clear_messages();
  world.connect();
  world.settle();
  EXPECT_EQ(reported_tails(world).size(), 1U);
  world.clear_messages();
  world.restart();
  world.connect();
  world.settle();
  EXPECT_EQ(reported_tails(world).size(), 1U) << "a restarted daemon reads it again";
  int with_tail = 0;
  for (const v1::AttemptReport& report : world.reports())
    with_tail += !report.exits().empty() && !report.exits(0).log_tail().empty();
  EXPECT_EQ(with_tail, 1);
}

// Hanging storage does not delay the end; the log end is reported once it arrives.
TEST(LogTailTest, IsReportedLateAfterASlowRead) {
  NodeWorld world;
  world.connect();
  world.launch(1, 2);
  world.hang<ReadLogTail>();
  world.rank_exits(1, 0, 1);
  world.settle();
  world.advance(2 * kSpoolTimeout);
  EXPECT_EQ(world.last(1).exits_size(), 1);
  EXPECT_TRUE(reported_tails(world).empty());
  world.release<ReadLogTail>();
  world.settle();
  world.advance(2 * kSpoolTimeout);
  EXPECT_EQ(reported_tails(world).count(0), 1U);
}

TEST(LogTailTest, IsReportedForRanksOfADeadShim) {
  NodeWorld world;
  world.connect();
  world.launch(1, 2);
  world.kill_shim(1);
  world.advance(absl::Seconds(5));
  EXPECT_EQ(world.last(1).error_reason(), "SHIM_LOST");
  EXPECT_EQ(reported_tails(world).size(), 2U);
}

TEST(LogTailTest, ReadsFewOfManySimilarFailures) {
  NodeWorld world;
  world.connect();
  world.launch(1, 4);
  for (int rank = 0; rank < 4; ++rank) world.rank_exits(1, rank, 1);
  world.settle();
  EXPECT_EQ(world.last(1).exits_size(), 4);
  EXPECT_EQ(world.count<ReadLogTail>(), rank_protocol::kFailedLogsAlike);
}

}  // namespace
}  // namespace titan::node
