#include "controller/job/record.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace titan::job {
namespace {

TEST(RecordTest, AJobComesBackAsItWas) {
  JobRecord record;
  record.uid = "u1";
  record.name = "projects/default/jobs/a";
  record.order = 7;
  record.fingerprint = 4000000000u;
  record.state = JobState::kRecovering;
  record.spec.dump_folder = "/data/a";
  record.spec.ranks = 4;
  record.spec.restart.stop_grace_seconds = 2.5;
  record.history.best_step = 12;
  record.history.user_error = "NONFINITE_LOSS";
  const absl::StatusOr<JobRecord> back = decode<JobRecord>(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(encode(*back), encode(record));
  EXPECT_EQ(back->state, JobState::kRecovering);
  EXPECT_EQ(back->spec.restart.stop_grace_seconds, 2.5);
}

// A record of an older version lacks members; it must load with their defaults.
TEST(RecordTest, MissingMembersTakeDefaults) {
  const absl::StatusOr<AttemptRecord> attempt = decode<AttemptRecord>(R"({"number":3,"placements":[{"node":"a"}]})");
  ASSERT_TRUE(attempt.ok()) << attempt.status();
  EXPECT_EQ(attempt->number, 3);
  EXPECT_EQ(attempt->placements[0].num_ranks, 0);
  const absl::StatusOr<NodeRecord> node = decode<NodeRecord>(R"({"name":"n1","device":"cuda","devices":8})");
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->devices, 8);
  EXPECT_EQ(node->device_memory_bytes, 0) << "not known";
}

// Until 0.1 only the job had a world, and nobody wrote down which devices ranks had.
TEST(RecordTest, AnOldAttemptsWorldIsThatOfItsPlacements) {
  const absl::StatusOr<AttemptRecord> attempt = decode<AttemptRecord>(
      R"({"number":1,"placements":[{"node":"a","num_ranks":2},{"node":"b","first_rank":2,"num_ranks":3}]})");
  ASSERT_TRUE(attempt.ok()) << attempt.status();
  EXPECT_EQ(attempt->ranks, 5);
  EXPECT_EQ(attempt->config_version, 1);
  EXPECT_TRUE(attempt->placements[1].devices.empty());
}

TEST(RecordTest, AnAttemptComesBackAsItWas) {
  AttemptRecord record;
  record.number = 2;
  record.placements = {{"a", 0, 2, {3, 1}}};
  record.ranks = 2;
  record.mesh = {{"tp", 2}};
  record.config_version = 4;
  const absl::StatusOr<AttemptRecord> back = decode<AttemptRecord>(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(encode(*back), encode(record));
  EXPECT_EQ(back->placements[0].devices, (std::vector<int>{3, 1}));
}

// One of an older version may have members that nobody reads any more.
TEST(RecordTest, ForgottenMembersAreSkipped) {
  const absl::StatusOr<JobRecord> job = decode<JobRecord>(R"({"name":"a","spec":{"memory_at_least":7,"ranks":2}})");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.ranks, 2);
}

TEST(RecordTest, ANodeComesBackAsItWas) {
  NodeRecord record;
  record.name = "n1";
  record.device_memory_bytes = int64_t{80} << 30;
  const absl::StatusOr<NodeRecord> back = decode<NodeRecord>(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(encode(*back), encode(record));
  EXPECT_EQ(back->device_memory_bytes, int64_t{80} << 30);
}

TEST(RecordTest, NonFiniteProgressSurvives) {
  Progress progress;
  progress.loss = std::numeric_limits<double>::quiet_NaN();
  progress.grad_norm = 1.5;
  progress.expert_max_over_mean = 3;
  const absl::StatusOr<Progress> back = decode<Progress>(encode(progress));
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(std::isnan(back->loss));
  EXPECT_EQ(back->grad_norm, 1.5);
  EXPECT_EQ(back->expert_max_over_mean, 3);
}

TEST(RecordTest, BrokenUtf8OfARankIsStillWritten) {
  EventRecord event;
  event.message = "bad \xff byte";
  EXPECT_TRUE(decode<EventRecord>(encode(event)).ok());
}

TEST(RecordTest, DamageIsDataLoss) {
  EXPECT_EQ(decode<JobRecord>("{").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decode<JobRecord>(R"({"state":"SLEEPING"})").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::job
