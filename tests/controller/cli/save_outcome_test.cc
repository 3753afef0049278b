#include "common/service/rpc/error.h"
#include "controller/cli/checkpoint.h"
#include "controller/cli/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

using ::testing::HasSubstr;

v1::Job job(v1::Job::State state, int64_t committed, const std::string& failed_save = "", int attempt = 1) {
  v1::Job job;
  job.set_name("projects/default/jobs/a");
  job.set_state(state);
  job.mutable_progress()->set_committed_step(committed);
  job.mutable_progress()->set_failed_save(failed_save);
  for (int i = 1; i <= attempt; ++i) job.add_attempts()->set_number(i);
  return job;
}

std::string reason_of(const std::optional<absl::Status>& outcome) {
  return outcome ? rpc::reason(*outcome) : "it continues";
}

const v1::Job kRequested = job(v1::Job::CHECKPOINTING, 10);

TEST(SaveOutcomeTest, CommittedCheckpointEndsTheWait) {
  EXPECT_EQ(save_outcome(kRequested, job(v1::Job::CHECKPOINTING, 10)), std::nullopt);
  for (const auto state : {v1::Job::RUNNING, v1::Job::STOPPING, v1::Job::RECOVERING, v1::Job::CANCELLED}) {
    const auto outcome = save_outcome(kRequested, job(state, 11));
    ASSERT_TRUE(outcome.has_value()) << state_name(state);
    EXPECT_TRUE(outcome->ok()) << *outcome;
  }
}

// On a full disk the job keeps training, so nothing else would ever end the wait.
TEST(SaveOutcomeTest, AFailedSaveEndsTheWaitWithItsReason) {
  const auto outcome = save_outcome(kRequested, job(v1::Job::RUNNING, 10, "step 11: No space left on device"));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::reason(*outcome), "CHECKPOINT_FAILED");
  EXPECT_THAT(std::string(outcome->message()), HasSubstr("step 11: No space left on device"));
}

// A failure from before the request does not belong to this save, unless the job no longer saves.
TEST(SaveOutcomeTest, EarlierFailureDoesNotEndTheWait) {
  const v1::Job requested = job(v1::Job::CHECKPOINTING, 10, "step 10: disk full");
  EXPECT_EQ(save_outcome(requested, requested), std::nullopt);
  EXPECT_EQ(reason_of(save_outcome(requested, job(v1::Job::CHECKPOINTING, 10, "step 12: disk full"))),
            "CHECKPOINT_FAILED");
  EXPECT_EQ(reason_of(save_outcome(requested, job(v1::Job::RUNNING, 10, "step 10: disk full"))), "CHECKPOINT_FAILED");
}

TEST(SaveOutcomeTest, WaitEndsWithTheAttempt) {
  for (const auto state : {v1::Job::RECOVERING, v1::Job::QUEUED, v1::Job::RESERVING, v1::Job::STARTING}) {
    EXPECT_EQ(reason_of(save_outcome(kRequested, job(state, 10))), "ATTEMPT_ENDED") << state_name(state);
  }
  v1::Job restarted = job(v1::Job::RUNNING, 10, "", 2);
  restarted.mutable_attempts(0)->set_end_cause("RANK_KILLED");
  const auto outcome = save_outcome(kRequested, restarted);
  EXPECT_EQ(reason_of(outcome), "ATTEMPT_ENDED");
  EXPECT_THAT(std::string(outcome->message()), HasSubstr("attempt 1 ended before it had saved: RANK_KILLED"));
}

// A cancelled job saves before it ends, so the wait continues until then.
TEST(SaveOutcomeTest, StoppingJobMayStillSave) {
  EXPECT_EQ(save_outcome(kRequested, job(v1::Job::STOPPING, 10)), std::nullopt);
  for (const auto state : {v1::Job::CANCELLED, v1::Job::FAILED, v1::Job::SUCCEEDED}) {
    EXPECT_EQ(reason_of(save_outcome(kRequested, job(state, 10))), "ATTEMPT_ENDED") << state_name(state);
  }
}

// An export alone is not a checkpoint to resume from.
TEST(SaveOutcomeTest, SaveWithoutACheckpointFails) {
  EXPECT_EQ(reason_of(save_outcome(kRequested, job(v1::Job::RUNNING, 10))), "CHECKPOINT_FAILED");
}

}  // namespace
}  // namespace titan::cli
