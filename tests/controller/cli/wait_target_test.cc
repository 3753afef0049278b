#include "controller/cli/wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

v1::Job job(int64_t step, int64_t total, int64_t committed = 0) {
  v1::Job job;
  job.set_name("projects/default/jobs/a");
  job.set_state(v1::Job::RUNNING);
  job.mutable_progress()->set_step(step);
  job.mutable_progress()->set_total_steps(total);
  job.mutable_progress()->set_committed_step(committed);
  return job;
}

TEST(WaitTargetTest, IsReached) {
  EXPECT_TRUE(WaitTarget::parse("step=5")->reached(job(5, 10)));
  EXPECT_FALSE(WaitTarget::parse("step=6")->reached(job(5, 10)));
  EXPECT_TRUE(WaitTarget::parse("committed=4")->reached(job(5, 10, 4)));
  EXPECT_TRUE(WaitTarget::parse("running")->reached(job(5, 10)));
  EXPECT_FALSE(WaitTarget::parse("failed")->reached(job(5, 10)));
  EXPECT_FALSE(WaitTarget::parse("")->reached(job(5, 10)));
  EXPECT_TRUE(WaitTarget::parse("")->is_end());
}

// Nobody should wait for hours for a step that never comes.
TEST(WaitTargetTest, AStepBeyondTheLastIsRefused) {
  for (const char* beyond : {"step=999999", "committed=4001"}) {
    const absl::Status status = WaitTarget::parse(beyond)->check(job(5, 4000));
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << beyond;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("ends at step 4000")) << beyond;
  }
  EXPECT_TRUE(WaitTarget::parse("step=4000")->check(job(5, 4000)).ok());
  EXPECT_TRUE(WaitTarget::parse("step=9")->check(job(0, 0)).ok()) << "the length of the job is not known yet";
  EXPECT_TRUE(WaitTarget::parse("running")->check(job(5, 4000)).ok());
}

TEST(WaitTargetTest, UnknownTargetsAreRefused) {
  for (const char* wrong : {"step=", "step=-1", "step=x", "committed=1.5", "runing"})
    EXPECT_EQ(WaitTarget::parse(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
}

}  // namespace
}  // namespace titan::cli
