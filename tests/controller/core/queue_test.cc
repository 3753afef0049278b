#include "controller/core/queue.h"

#include "gtest/gtest.h"

namespace titan::core {
namespace {

class QueueTest : public ::testing::Test {
 protected:
  QueueTest() { queue_.set_node({"n1", "cpu", 4}); }

  static scheduler::PendingJob job(const std::string& uid, int ranks) {
    scheduler::PendingJob job;
    job.uid = uid;
    job.device = "cpu";
    job.ranks = ranks;
    return job;
  }

  // Returns the uids of the jobs that a cycle places.
  std::vector<std::string> placed() {
    std::vector<std::string> uids;
    for (const scheduler::Outcome& outcome : queue_.cycle(absl::UnixEpoch())) {
      if (!outcome.runs.empty()) uids.push_back(outcome.uid);
    }
    return uids;
  }

  SchedulingQueue queue_;
};

TEST_F(QueueTest, ClaimWithoutDevicesTakesFreeOnes) {
  EXPECT_EQ(queue_.claim("a", "n1", {0, 2}, 2), (std::vector<int>{0, 2}));
  EXPECT_EQ(queue_.claim("b", "n1", {}, 1), std::vector<int>{1});
  EXPECT_EQ(queue_.claim("c", "n1", {}, 2), std::vector<int>{3}) << "there are no more";
  queue_.release("a", "n1");
  EXPECT_EQ(queue_.claim("c", "n1", {}, 2), (std::vector<int>{0, 2}));
}

// A job that is held back keeps its devices, and is placed on them once it has entered.
TEST_F(QueueTest, HeldBackJobsAreNotPlaced) {
  queue_.hold_back("a", {{"n1", {0, 1, 2}}}, absl::InfiniteFuture());
  queue_.enter(job("b", 2), std::nullopt);
  EXPECT_TRUE(placed().empty());
  EXPECT_TRUE(queue_.held_back().contains("a"));
  EXPECT_FALSE(queue_.waits("a"));
  scheduler::PendingJob back = job("a", 3);
  back.recovering = true;
  back.reserved = {{"n1", {0, 1, 2}}};
  queue_.enter(std::move(back), absl::Seconds(60));
  EXPECT_TRUE(queue_.held_back().empty());
  EXPECT_TRUE(queue_.waits("a"));
  EXPECT_EQ(placed(), std::vector<std::string>{"a"});
  EXPECT_TRUE(queue_.waits("b"));
}

TEST_F(QueueTest, PreferencesExpireAtTheirTime) {
  queue_.enter(job("a", 8), absl::Seconds(60));
  queue_.enter(job("b", 8), std::nullopt);
  queue_.enter(job("c", 8), absl::Seconds(50));
  queue_.place("c");
  EXPECT_TRUE(queue_.take_expired_preferences(absl::Seconds(60)).empty());
  EXPECT_EQ(queue_.take_expired_preferences(absl::Seconds(61)), std::vector<std::string>{"a"});
  EXPECT_TRUE(queue_.take_expired_preferences(absl::Seconds(61)).empty());
}

TEST_F(QueueTest, LeavingJobsReleaseEverything) {
  queue_.hold_back("a", {{"n1", {0, 1, 2, 3}}}, absl::InfiniteFuture());
  queue_.leave("a");
  EXPECT_TRUE(queue_.held_back().empty());
  queue_.enter(job("b", 4), absl::Seconds(60));
  EXPECT_EQ(placed(), std::vector<std::string>{"b"});
  queue_.leave("b");
  EXPECT_TRUE(queue_.take_expired_preferences(absl::Seconds(100)).empty());
  EXPECT_EQ(queue_.claim("c", "n1", {}, 4).size(), 4);
}

}  // namespace
}  // namespace titan::core
