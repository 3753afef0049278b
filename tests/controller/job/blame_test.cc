#include "controller/job/blame.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::job {
namespace {

constexpr int64_t kMinute = 60'000'000'000;

AttemptEnd end_at(const std::string& node, Cause cause, const std::string& reason = "") {
  AttemptEnd end;
  end.cause = cause;
  end.reason = reason;
  end.node = node;
  return end;
}

TEST(BlameTest, WhatANodeCouldNotDoIsItsOwn) {
  EXPECT_TRUE(blames_node(end_at("n1", Cause::kLaunchFailed, "PREPARE_TIMEOUT")));
  EXPECT_TRUE(blames_node(end_at("n1", Cause::kShimLost)));
  EXPECT_FALSE(blames_node(end_at("", Cause::kLaunchFailed))) << "no node is named";
  EXPECT_FALSE(blames_node(end_at("n1", Cause::kLaunchFailed, "NO_DEVICES"))) << "somebody else held them";
  EXPECT_FALSE(blames_node(end_at("n1", Cause::kRankFailed))) << "a bug of the job's";
  EXPECT_FALSE(blames_node(end_at("n1", Cause::kUserError, "DUMP_FOLDER_NOT_SHARED")));
}

// Whoever holds them may do so for long, and other nodes have some.
TEST(BlameTest, ANodeWithoutTheDevicesIsAvoidedWithoutBlame) {
  for (const char* reason : {"NO_DEVICES", "DEVICE_TAKEN"}) {
    EXPECT_TRUE(avoids_node(end_at("n1", Cause::kLaunchFailed, reason)));
    EXPECT_FALSE(blames_node(end_at("n1", Cause::kLaunchFailed, reason)));
  }
  EXPECT_FALSE(avoids_node(end_at("n1", Cause::kLaunchFailed, "STALE_ATTEMPT")));
}

TEST(BlameTest, AStaleMountIsAvoidedWithoutBlame) {
  EXPECT_TRUE(avoids_node(end_at("n1", Cause::kUserError, "DUMP_FOLDER_NOT_SHARED")));
  EXPECT_TRUE(avoids_node(end_at("n1", Cause::kUserError, "CHECKPOINTS_GONE")));
  EXPECT_FALSE(avoids_node(end_at("n1", Cause::kUserError, "DATASET_MISSING")));
}

TEST(BlameTest, TwoJobsMakeACordonOneDoesNot) {
  std::vector<Blame> blames;
  for (int i = 0; i < 5; ++i) add_blame(blames, {"a", "LAUNCH_FAILED", i * kMinute});
  EXPECT_EQ(reason_to_cordon(blames), "") << "it may be the job";
  add_blame(blames, {"b", "PREPARE_TIMEOUT", 6 * kMinute});
  EXPECT_EQ(reason_to_cordon(blames), "failed 2 jobs within a day: LAUNCH_FAILED, PREPARE_TIMEOUT");
}

TEST(BlameTest, ADayLaterItIsForgotten) {
  std::vector<Blame> blames;
  add_blame(blames, {"a", "LAUNCH_FAILED", 0});
  add_blame(blames, {"b", "LAUNCH_FAILED", 24 * 60 * kMinute + 1});
  EXPECT_EQ(blames.size(), 1u);
  EXPECT_EQ(reason_to_cordon(blames), "");
}

TEST(BlameTest, OneCrashWithManyJobsIsOneLoss) {
  std::vector<Blame> blames;
  for (const char* job : {"a", "b", "c", "d"}) add_blame(blames, {job, "NODE_LOST", kMinute});
  EXPECT_EQ(reason_to_cordon(blames), "");
  add_blame(blames, {"a", "NODE_LOST", 10 * kMinute});
  add_blame(blames, {"a", "NODE_LOST", 20 * kMinute});
  EXPECT_EQ(reason_to_cordon(blames), "was lost 3 times within a day");
}

}  // namespace
}  // namespace titan::job
