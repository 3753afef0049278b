#include "absl/strings/str_cat.h"
#include "controller/cli/job_progress.h"
#include "controller/cli/job_text.h"
#include "controller/cli/list.h"
#include "controller/cli/watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

void set(google::protobuf::Timestamp* stamp, absl::Time time) { stamp->set_seconds(absl::ToUnixSeconds(time)); }

// Returns a running job of 2 ranks with 8 rows of 100 tokens a step and 200 tokens/s per device: a step takes 2 s, and
// every tenth one is reported.
v1::Job running(int64_t step, absl::Duration since_start, absl::Duration since_report) {
  v1::Job job;
  job.set_name("projects/default/jobs/a");
  job.set_state(v1::Job::RUNNING);
  job.mutable_spec()->set_ranks(2);
  job.mutable_spec()->set_dump_folder("/d");
  job.mutable_spec()->set_config_json(
      R"({"training": {"global_batch_size": 8, "seq_len": 100}, "metrics": {"log_freq": 10}})");
  set(job.mutable_create_time(), kStart - absl::Minutes(1));
  set(job.add_attempts()->mutable_start_time(), kStart);
  v1::Progress& progress = *job.mutable_progress();
  progress.set_step(step);
  progress.set_total_steps(100);
  progress.set_tokens_per_second(200);
  set(progress.mutable_update_time(), kStart + since_start - since_report);
  return job;
}

// A waiting user sees how long the job has run, how long it will run, and when it stopped making progress.
TEST(PaceTest, ShowsPaceOfARunningJob) {
  const v1::Job job = running(40, absl::Seconds(100), absl::Seconds(10));
  const Pace pace = pace_of(job, kStart + absl::Seconds(100));
  EXPECT_EQ(pace.elapsed, absl::Seconds(100));
  EXPECT_EQ(pace.step, absl::Seconds(2));
  EXPECT_EQ(pace.since_step, absl::Seconds(10));
  EXPECT_EQ(pace.left, absl::Seconds(110)) << "60 steps of 2 s, of which 10 s have passed";
  EXPECT_FALSE(pace.stalled);
}

TEST(PaceTest, ComputesPaceWithTheDefaultBatch) {
  v1::Job job = running(40, absl::Seconds(100), absl::Seconds(10));
  job.mutable_spec()->set_config_json(
      R"({"training": {"global_batch_size": -1, "local_batch_size": 4, "seq_len": 100}, "metrics": {"log_freq": 10},
          "parallelism": {"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": 2}})");
  EXPECT_EQ(pace_of(job, kStart + absl::Seconds(100)).step, absl::Seconds(2));
}

TEST(PaceTest, StallIsFarLongerThanTheReportInterval) {
  const absl::Time now = kStart + absl::Seconds(300);
  EXPECT_FALSE(pace_of(running(40, absl::Seconds(300), absl::Seconds(99)), now).stalled);
  EXPECT_TRUE(pace_of(running(40, absl::Seconds(300), absl::Seconds(101)), now).stalled);
  v1::Job quick = running(40, absl::Seconds(300), absl::Seconds(59));
  quick.mutable_progress()->set_tokens_per_second(1e6);
  EXPECT_FALSE(pace_of(quick, now).stalled) << "a checkpoint or a validation may take longer than many quick steps";
}

TEST(PaceTest, UnknownFiguresAreLeftOut) {
  const absl::Time now = kStart + absl::Seconds(300);
  EXPECT_FALSE(pace_of(v1::Job(), now).elapsed.has_value());
  v1::Job job = running(0, absl::Seconds(300), absl::Seconds(5));
  job.mutable_progress()->set_tokens_per_second(0);
  EXPECT_FALSE(pace_of(job, now).left.has_value());
  job.mutable_spec()->set_config_json("not JSON");
  EXPECT_FALSE(pace_of(job, now).left.has_value());
  job.set_state(v1::Job::QUEUED);
  EXPECT_FALSE(pace_of(job, now).since_step.has_value());
}

// The age of a finished job does not grow, and its time is that of its attempts.
TEST(PaceTest, ShowsPaceOfAFinishedJob) {
  v1::Job job = running(100, absl::Seconds(200), absl::ZeroDuration());
  job.set_state(v1::Job::SUCCEEDED);
  set(job.mutable_end_time(), kStart + absl::Seconds(200));
  const Pace pace = pace_of(job, kStart + absl::Hours(1000));
  EXPECT_EQ(pace.elapsed, absl::Seconds(200));
  EXPECT_FALSE(pace.left.has_value());
  EXPECT_FALSE(pace.since_step.has_value());
  const std::string table = list_text({job});
  EXPECT_THAT(table, HasSubstr("3m20s  -     4m20s")) << table;  // TIME, LEFT and AGE; the job ended long ago.
  EXPECT_EQ(nothing_to_do(job), "");
}

// A finished job that is submitted again, or with fewer steps, shows why it ends at once.
TEST(PaceTest, ShowsThatThereIsNothingToDo) {
  v1::Job job = running(0, absl::Seconds(5), absl::ZeroDuration());
  job.set_state(v1::Job::SUCCEEDED);
  job.mutable_attempts(0)->set_resumed_step(120);
  EXPECT_THAT(nothing_to_do(job), HasSubstr("nothing to do: step 120 of 100 is done in /d"));
  EXPECT_THAT(describe_text(job, {}), HasSubstr("nothing to do"));
  job.mutable_attempts(0)->set_resumed_step(99);
  EXPECT_EQ(nothing_to_do(job), "");
}

TEST(PaceTest, DescribeShowsEachAttemptsWorldAndMesh) {
  v1::Job job = running(40, absl::Seconds(100), absl::Seconds(10));
  v1::Attempt& attempt = *job.mutable_attempts(0);
  EXPECT_THAT(describe_text(job, {}), Not(HasSubstr("dp_shard"))) << "the controller does not report the mesh";
  attempt.set_ranks(4);
  (*attempt.mutable_mesh())["tp"] = 2;
  (*attempt.mutable_mesh())["dp_shard"] = 2;
  EXPECT_THAT(describe_text(job, {}), HasSubstr("4 ranks: dp_shard 2, tp 2\n"));
}

// The file of last collectives is overwritten by the next attempt that writes one.
TEST(PaceTest, ReplacedRecordingIsNotNamed) {
  const std::string recording =
      "rank 1 lost its peer; until the next attempt this rank's last collectives are in /d/comm_traces/rank_1";
  v1::Job job = running(40, absl::Seconds(100), absl::Seconds(10));
  v1::Attempt& first = *job.mutable_attempts(0);
  first.set_number(1);
  first.set_end_cause("HANG");
  first.set_end_message(recording);
  v1::RankExit& exit = *first.add_exits();
  exit.set_exit_code(12);
  exit.set_message(recording);
  EXPECT_THAT(describe_text(job, {}), HasSubstr("/d/comm_traces/rank_1")) << "the file exists";
  v1::Attempt& second = *job.add_attempts();
  second.set_number(2);
  EXPECT_THAT(describe_text(job, {}), HasSubstr("/d/comm_traces/rank_1")) << "the second attempt has written none";
  second.set_end_cause("HANG");
  second.set_end_message(
      "rank 0 lost its peer; until the next attempt this rank's last collectives are in /d/comm_traces/rank_0");
  const std::string text = describe_text(job, {});
  EXPECT_THAT(text, Not(HasSubstr("rank_1")));
  EXPECT_THAT(text, HasSubstr("rank 1 lost its peer\n"));
  EXPECT_THAT(text, HasSubstr("/d/comm_traces/rank_0"));
}

// The cause of the wait is shown before the cause of the failure.
TEST(PaceTest, ShowsThatRanksCannotBeReached) {
  v1::Job job = running(40, absl::Seconds(100), absl::Seconds(10));
  job.set_state(v1::Job::STOPPING);
  job.set_pending_reason("NODE_UNREACHABLE");
  job.set_pending_message("2 ranks on n2 may still run");
  job.set_failure_reason("TIME_LIMIT");
  EXPECT_THAT(list_text({job}), HasSubstr("NODE_UNREACHABLE"));
  EXPECT_THAT(describe_text(job, {}), HasSubstr("NODE_UNREACHABLE: 2 ranks on n2 may still run"));
}

// A full disk warns at each logged step: only one of these lines is shown, so that other warnings stay visible.
TEST(PaceTest, ShowsTheNewestProblemOfEachKind) {
  std::deque<v1::Event> newest;
  const auto add = [&newest](const char* severity, const char* reason, const std::string& message) {
    v1::Event event;
    event.set_severity(severity);
    event.set_reason(reason);
    event.set_message(message);
    add_problem(newest, event);
  };
  add("error", "AttemptEnded", "attempt 1: RANK_KILLED");
  for (int step = 1; step <= 50; ++step) {
    add("warning", "RankWarning",
        absl::StrCat("rank ", step % 2, ": step ", step, ": No space left (reported ", step, " times)"));
    add("info", "Checkpoint", "step 5 is saved");
  }
  ASSERT_EQ(newest.size(), 2u);
  EXPECT_EQ(newest[0].message(), "attempt 1: RANK_KILLED");
  EXPECT_EQ(newest[1].message(), "rank 0: step 50: No space left (reported 50 times)");
  for (const char* other : {"a", "b", "c", "d"}) add("warning", "RankWarning", other);
  ASSERT_EQ(newest.size(), 5u);
  EXPECT_EQ(newest[0].message(), "rank 0: step 50: No space left (reported 50 times)")
      << "the oldest problem is dropped";
}

TEST(PaceTest, DescribeEndsWithTheWarnings) {
  const v1::Job job = running(40, absl::Seconds(100), absl::Seconds(10));
  v1::Event event;
  event.set_reason("RankWarning");
  event.set_message("the checkpoint's global batch of 8 rows is kept");
  EXPECT_THAT(describe_text(job, {event}), HasSubstr("warnings\n  -  RankWarning: the checkpoint's global batch"));
  EXPECT_THAT(describe_text(job, {}), Not(HasSubstr("warnings")));
}

}  // namespace
}  // namespace titan::cli
