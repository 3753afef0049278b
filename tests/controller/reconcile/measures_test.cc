#include "controller/reconcile/measures.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::HasSubstr;

// A counter that appears with its first event shows no increase, so no alert fires.
TEST(MeasuresTest, KnownLabelsExistFromTheStart) {
  metrics::Metrics metrics;
  const Measures measures(metrics);
  for (const char* line :
       {"titan_job_attempts_total{cause=\"OUT_OF_MEMORY\"} 0", "titan_job_attempts_total{cause=\"STALE_ATTEMPT\"} 0",
        "titan_job_lost_seconds_total{phase=\"detect\"} 0", "titan_job_lost_seconds_total{phase=\"replay\"} 0",
        "titan_recovery_duration_seconds_count{phase=\"total\"} 0",
        "titan_checkpoint_duration_seconds_count{kind=\"stall\"} 0",
        "titan_checkpoint_duration_seconds_count{kind=\"write\"} 0", "titan_checkpoint_failures_total 0",
        "titan_store_commit_duration_seconds_count 0", "titan_queue_wait_seconds_count 0", "titan_kept_logs_bytes 0",
        "titan_kept_logs_dropped_bytes_total{reason=\"NEWER_ATTEMPTS\"} 0", "titan_leader 0",
        "titan_node_refusals_total{reason=\"WRONG_CLUSTER\"} 0",
        "titan_node_refusals_total{reason=\"NODE_ID_IN_USE\"} 0", "titan_node_refusals_total{reason=\"BAD_NODE_ID\"} 0",
        "titan_node_refusals_total{reason=\"BAD_DEVICES\"} 0"}) {
    EXPECT_THAT(metrics.text(), HasSubstr(absl::StrCat("\n", line, "\n")));
  }
}

TEST(MeasuresTest, ShowsLeadership) {
  metrics::Metrics metrics;
  Measures measures(metrics);
  measures.leads(true);
  EXPECT_THAT(metrics.text(), HasSubstr("\ntitan_leader 1\n"));
}

TEST(MeasuresTest, CountsCommitsAndTheirTransactions) {
  metrics::Metrics metrics;
  Measures measures(metrics);
  measures.store_commit(3, absl::Milliseconds(4));
  measures.store_commit(2, absl::Milliseconds(4));
  EXPECT_THAT(metrics.text(), HasSubstr("\ntitan_store_transactions_total 5\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("\ntitan_store_commit_duration_seconds_count 2\n"));
}

// A row of figures has the mean over the steps since the row before: the total time of saves is observed.
TEST(MeasuresTest, ObservesTheTotalStallOfSaves) {
  World world;
  FakeNode& node = world.add_node("n1", 2);
  ASSERT_TRUE(world.submit(world.spec("a", 2, 2)).ok());
  const auto line = [&](int64_t step, double each) {
    const nlohmann::json metrics = {{"loss_metrics/global_avg_loss", 2.5}, {"time_metrics/checkpoint(s)", each}};
    const nlohmann::json logged = {{"kind", "step"}, {"step", step}, {"metrics", metrics}};
    world.event(node, world.key("a"), 0, logged.dump());
    world.settle();
  };
  world.loaded("a", 0);
  line(10, 0);
  EXPECT_THAT(world.metrics_.text(), HasSubstr("titan_checkpoint_duration_seconds_count{kind=\"stall\"} 0"));
  line(20, 0.25);
  EXPECT_THAT(world.metrics_.text(), HasSubstr("titan_checkpoint_duration_seconds_count{kind=\"stall\"} 1"));
  EXPECT_THAT(world.metrics_.text(), HasSubstr("titan_checkpoint_duration_seconds_sum{kind=\"stall\"} 2.5"));
  world.train("a", 21);  // A row without this figure.
  line(30, 0.125);
  EXPECT_THAT(world.metrics_.text(), HasSubstr("titan_checkpoint_duration_seconds_sum{kind=\"stall\"} 3.75"));
}

TEST(MeasuresTest, RestartedControllerSkipsTheFirstStall) {
  World world;
  FakeNode& node = world.add_node("n1", 2);
  ASSERT_TRUE(world.submit(world.spec("a", 2, 2)).ok());
  world.loaded("a", 0);
  world.crash();
  world.connect_all();
  const nlohmann::json metrics = {{"time_metrics/checkpoint(s)", 1}};
  world.event(node, world.key("a"), 0, nlohmann::json({{"kind", "step"}, {"step", 500}, {"metrics", metrics}}).dump());
  world.settle();
  EXPECT_THAT(world.metrics_.text(), HasSubstr("titan_checkpoint_duration_seconds_count{kind=\"stall\"} 0"));
}

}  // namespace
}  // namespace titan::reconcile
