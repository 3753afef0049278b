#include "controller/job/blame.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMinute = 60'000'000'000;

AttemptEnd end_at(const std::string& node, Cause cause, const std::string& reason = "") {
  AttemptEnd end;
  end.cause = cause;
  end.reason = reason;
  end.node = node;
  return end;
}

TEST(BlameTest, NodeFailuresBlameTheNode) {
  EXPECT_TRUE(blames_node(end_at("n1", Cause::kLaunchFailed, "PREPARE_TIMEOUT")));
  EXPECT_TRUE(blames_node(end_at("n1", Cause::kShimLost)));
  EXPECT_FALSE(blames_node(end_at("", Cause::kLaunchFailed))) << "no node is named";
  EXPECT_FALSE(blames_node(end_at("n1", Cause::kLaunchFailed, "NO_DEVICES"))) << "another process held them";
  EXPECT_FALSE(blames_node(end_at("n1", Cause::kRankFailed))) << "a bug of the job";
  EXPECT_FALSE(blames_node(end_at("n1", Cause::kUserError, "DUMP_FOLDER_NOT_SHARED")));
}

// Another process may keep the devices for long, so the job uses other nodes; this node is not at fault.
TEST(BlameTest, ANodeWithoutTheDevicesIsAvoidedWithoutBlame) {
  for (const char* reason : {"NO_DEVICES", "DEVICE_TAKEN"}) {
    EXPECT_THAT(nodes_to_avoid(end_at("n1", Cause::kLaunchFailed, reason)), ElementsAre("n1"));
    EXPECT_FALSE(blames_node(end_at("n1", Cause::kLaunchFailed, reason)));
  }
  EXPECT_THAT(nodes_to_avoid(end_at("n1", Cause::kLaunchFailed, "STALE_ATTEMPT")), IsEmpty());
}

TEST(BlameTest, AStaleMountIsAvoidedWithoutBlame) {
  EXPECT_THAT(nodes_to_avoid(end_at("n1", Cause::kUserError, "DUMP_FOLDER_UNUSABLE")), ElementsAre("n1"));
  EXPECT_THAT(nodes_to_avoid(end_at("n1", Cause::kUserError, "CHECKPOINTS_GONE")), ElementsAre("n1"));
  EXPECT_THAT(nodes_to_avoid(end_at("n1", Cause::kUserError, "DATASET_MISSING")), IsEmpty());
}

// Whatever the cause, failing on the same node again gives no new information.
TEST(BlameTest, SecondFailureWithoutProgressMakesABlackHole) {
  for (const Cause cause : {Cause::kRankFailed, Cause::kRankKilled, Cause::kOutOfMemory, Cause::kStorageError}) {
    EXPECT_FALSE(is_black_hole(end_at("n1", cause), 0));
    EXPECT_TRUE(is_black_hole(end_at("n1", cause), 1));
    EXPECT_FALSE(is_black_hole(end_at("", cause), 1));
    EXPECT_FALSE(blames_node(end_at("n1", cause)));
  }
  EXPECT_FALSE(is_black_hole(end_at("n1", Cause::kUserError, "NONFINITE_LOSS"), 1));
  EXPECT_FALSE(is_black_hole(end_at("n1", Cause::kNodeLost), 1));
}

// The loader's exit code means that the launch failed on that node.
TEST(BlameTest, ARankThatCannotBeLoadedBlamesItsNode) {
  RankExit exit;
  exit.node = "n1";
  exit.exit_code = 127;
  const AttemptEnd end = classify({.exits = {exit}, .num_ranks = 1});
  EXPECT_TRUE(blames_node(end));
  EXPECT_THAT(nodes_to_avoid(end), ElementsAre("n1"));
}

// Two nodes see different folders: either may have the wrong one.
TEST(BlameTest, DisagreeingNodesAreBothAvoided) {
  AttemptEnd end = end_at("n2", Cause::kUserError, "DUMP_FOLDER_NOT_SHARED");
  end.at_odds = {"n1", "n2"};
  EXPECT_THAT(nodes_to_avoid(end), ElementsAre("n1", "n2"));
}

TEST(BlameTest, NodeThatFailsAgainIsTheOnlyOneAvoided) {
  std::vector<std::string> avoided;
  avoid(avoided, {"n1", "n2"});
  avoid(avoided, {"n4"});
  EXPECT_THAT(avoided, ElementsAre("n1", "n2", "n4"));
  avoid(avoided, {"n1", "n3"});
  EXPECT_THAT(avoided, ElementsAre("n1"));
  avoid(avoided, {});
  EXPECT_THAT(avoided, ElementsAre("n1"));
}

TEST(BlameTest, CordonNeedsFailuresOfTwoJobs) {
  std::vector<Blame> blames;
  for (int i = 0; i < 5; ++i) add_blame(blames, {"a", "LAUNCH_FAILED", i * kMinute});
  EXPECT_EQ(reason_to_cordon(blames), "") << "it may be the job";
  add_blame(blames, {"b", "PREPARE_TIMEOUT", 6 * kMinute});
  EXPECT_EQ(reason_to_cordon(blames), "failed 2 jobs within a day: LAUNCH_FAILED, PREPARE_TIMEOUT");
}

TEST(BlameTest, BlamesExpireAfterADay) {
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
