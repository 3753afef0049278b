#include "controller/job/state.h"

#include <random>

#include "gtest/gtest.h"

namespace titan::job {
namespace {

constexpr int kStates = static_cast<int>(JobState::kCancelled) + 1;
constexpr int kEvents = static_cast<int>(JobEvent::kGaveUp) + 1;

// The undisturbed life of a job, with one restart and one checkpoint on demand.
TEST(StateTest, FollowsANormalLife) {
  JobState state = JobState::kQueued;
  for (const JobEvent event : {JobEvent::kPlaced, JobEvent::kPrepared, JobEvent::kFirstStep, JobEvent::kAttemptFailed,
                               JobEvent::kPlaced, JobEvent::kPrepared, JobEvent::kFirstStep,
                               JobEvent::kCheckpointRequested, JobEvent::kCheckpointDone, JobEvent::kFinished}) {
    const absl::StatusOr<JobState> next = next_state(state, event);
    ASSERT_TRUE(next.ok()) << next.status();
    state = *next;
  }
  EXPECT_EQ(state, JobState::kSucceeded);
}

TEST(StateTest, FinalStatesAreFinal) {
  for (const JobState state : {JobState::kSucceeded, JobState::kFailed, JobState::kCancelled}) {
    EXPECT_TRUE(is_final(state));
    for (int event = 0; event < kEvents; ++event) {
      EXPECT_EQ(next_state(state, static_cast<JobEvent>(event)).status().code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}

// From any state, cancelling leads to an end within two events: no state is a trap.
TEST(StateTest, EveryLiveStateCanBeLeft) {
  for (int i = 0; i < kStates; ++i) {
    JobState state = static_cast<JobState>(i);
    if (is_final(state)) continue;
    if (const auto stopping = next_state(state, JobEvent::kStopRequested); stopping.ok()) state = *stopping;
    const auto end = next_state(state, JobEvent::kStopped);
    ASSERT_TRUE(end.ok()) << name(static_cast<JobState>(i)) << ": " << end.status();
    EXPECT_EQ(*end, JobState::kCancelled);
  }
}

// The time limit may pass while ranks stop or while the job waits for a restart.
TEST(StateTest, StoppingOrRecoveringJobMayFail) {
  for (const JobState state : {JobState::kStopping, JobState::kRecovering}) {
    EXPECT_EQ(*next_state(state, JobEvent::kGaveUp), JobState::kFailed);
  }
  EXPECT_EQ(next_state(JobState::kRunning, JobEvent::kGaveUp).status().code(), absl::StatusCode::kFailedPrecondition);
}

// For any events in any order, a job runs only after it was placed and prepared, and each placement follows the end of
// the attempt before it.
TEST(StateTest, RandomEventsKeepTheOrder) {
  std::mt19937 random(20261121);
  for (int seed = 0; seed < 20000; ++seed) {
    JobState state = JobState::kQueued;
    bool placed = false;
    for (int i = 0; i < 40; ++i) {
      const auto event = static_cast<JobEvent>(random() % kEvents);
      const absl::StatusOr<JobState> next = next_state(state, event);
      if (!next.ok()) continue;
      if (event == JobEvent::kPlaced) {
        EXPECT_FALSE(placed);
        placed = true;
      }
      if (event == JobEvent::kFirstStep || event == JobEvent::kFinished) {
        EXPECT_TRUE(placed || state == JobState::kStopping);
      }
      if (event == JobEvent::kAttemptFailed) placed = false;
      state = *next;
    }
  }
}

TEST(StateTest, StateNamesRoundTrip) {
  for (int i = 0; i < kStates; ++i) {
    const auto state = static_cast<JobState>(i);
    EXPECT_EQ(*state_from_name(name(state)), state);
  }
  EXPECT_EQ(state_from_name("SLEEPING").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StateTest, ErrorNamesStateAndEvent) {
  EXPECT_EQ(next_state(JobState::kQueued, JobEvent::kCheckpointRequested).status().message(),
            "job is QUEUED: cannot apply 'checkpoint requested'");
}

}  // namespace
}  // namespace titan::job
