// Gauges of the controller's metrics page: what is counted, what is left out, and that a scrape never blocks.

#include "controller/api/gauges.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "tests/controller/world.h"

namespace titan::api {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Time kMoment = absl::FromUnixSeconds(1'700'000'000);

int64_t before(absl::Duration ago) { return absl::ToUnixNanos(kMoment - ago); }

template <typename Collected>
std::string page_of(Collected& gauges) {
  return prometheus::TextSerializer().Serialize(gauges.take());
}

struct Parts {
  job::JobRecord record;
  job::AttemptRecord attempt;
  job::Progress progress;
  std::string pending_reason;

  core::JobView view() const {
    core::JobView view;
    view.record = std::make_shared<job::JobRecord>(record);
    if (attempt.number > 0) view.attempts = {std::make_shared<job::AttemptRecord>(attempt)};
    view.progress = progress;
    view.pending_reason = pending_reason;
    return view;
  }
};

Parts running(const std::string& id) {
  Parts parts;
  parts.record.name = "projects/default/jobs/" + id;
  parts.record.state = job::JobState::kRunning;
  parts.record.attempts = 1;
  parts.record.spec.ranks = 2;
  parts.record.placed_time_ns = before(absl::Seconds(310));
  parts.record.start_time_ns = before(absl::Seconds(300));
  parts.attempt.number = 1;
  parts.attempt.start_time_ns = before(absl::Seconds(310));
  parts.progress.step = 70;
  parts.progress.loss = 2.5;
  parts.progress.update_time_ns = before(absl::Seconds(4));
  parts.progress.committed_step = 60;
  parts.progress.commit_time_ns = before(absl::Seconds(50));
  return parts;
}

std::string alone(const Parts& parts) {
  JobGauges gauges(10, kMoment);
  gauges.add(parts.view());
  return page_of(gauges);
}

TEST(JobGaugesTest, RunningJobHasItsSeries) {
  const std::string page = alone(running("a"));
  for (const char* line : {"titan_job_step{titan_job=\"projects/default/jobs/a\"} 70",
                           "titan_job_loss{titan_job=\"projects/default/jobs/a\"} 2.5",
                           "titan_job_ranks{titan_job=\"projects/default/jobs/a\"} 2",
                           "titan_job_attempts{titan_job=\"projects/default/jobs/a\"} 1",
                           "titan_job_step_age_seconds{titan_job=\"projects/default/jobs/a\"} 4",
                           "titan_job_committed_step{titan_job=\"projects/default/jobs/a\"} 60",
                           "titan_job_checkpoint_age_seconds{titan_job=\"projects/default/jobs/a\"} 50",
                           "titan_job_save_failed{titan_job=\"projects/default/jobs/a\"} 0",
                           "titan_jobs{state=\"RUNNING\"} 1", "titan_jobs{state=\"QUEUED\"} 0"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat(line, "\n")));
  }
  EXPECT_THAT(page, Not(HasSubstr("titan_job_mfu_ratio{"))) << "the device's peak is unknown";
}

TEST(JobGaugesTest, FinishedJobHasNoSeries) {
  Parts parts = running("a");
  parts.record.state = job::JobState::kSucceeded;
  const std::string page = alone(parts);
  EXPECT_THAT(page, HasSubstr("titan_jobs{state=\"SUCCEEDED\"} 1"));
  EXPECT_THAT(page, Not(HasSubstr("jobs/a")));
}

// A new attempt has time to load, and a job without a checkpoint counts from its first step.
TEST(JobGaugesTest, AgesBeginWithTheAttemptAndTheFirstStep) {
  Parts parts = running("a");
  parts.attempt.start_time_ns = before(absl::Seconds(3));
  parts.progress.commit_time_ns = 0;
  EXPECT_THAT(alone(parts), HasSubstr("titan_job_step_age_seconds{titan_job=\"projects/default/jobs/a\"} 3\n"));
  EXPECT_THAT(alone(parts), HasSubstr("titan_job_checkpoint_age_seconds{titan_job=\"projects/default/jobs/a\"} 300\n"));
  parts.record.spec.saves = false;
  EXPECT_THAT(alone(parts), Not(HasSubstr("titan_job_checkpoint_age_seconds{")));
  parts.progress.failed_save = "step 12: disk full";
  parts.record.spec.saves = true;
  EXPECT_THAT(alone(parts), HasSubstr("titan_job_save_failed{titan_job=\"projects/default/jobs/a\"} 1\n"));
}

TEST(JobGaugesTest, LongestWaitLeavesOutPlacedJobs) {
  Parts queued;
  queued.record.create_time_ns = before(absl::Seconds(20));
  queued.pending_reason = "INSUFFICIENT_DEVICES";
  Parts recovering = running("b");
  recovering.record.state = job::JobState::kRecovering;
  recovering.attempt.end_time_ns = before(absl::Seconds(90));
  recovering.pending_reason = "INSUFFICIENT_DEVICES";
  Parts loading = running("c");  // This job has its nodes.
  loading.attempt.start_time_ns = before(absl::Seconds(300));
  loading.pending_reason = "NO_STEP_YET";
  JobGauges gauges(10, kMoment);
  gauges.add(queued.view());
  gauges.add(recovering.view());
  gauges.add(loading.view());
  const std::string page = page_of(gauges);
  EXPECT_THAT(page, HasSubstr("titan_queue_longest_wait_seconds 90\n"));
  EXPECT_THAT(page, HasSubstr("titan_pending_jobs{reason=\"NO_STEP_YET\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("titan_pending_jobs{reason=\"INSUFFICIENT_DEVICES\"} 2\n"));
}

TEST(JobGaugesTest, BeyondTheCapJobsAreOnlyCounted) {
  JobGauges gauges(2, kMoment);
  for (const char* id : {"a", "b", "c", "d"}) gauges.add(running(id).view());
  EXPECT_EQ(gauges.left_out(), 2u);
  const std::string page = page_of(gauges);
  EXPECT_THAT(page, HasSubstr("titan_jobs{state=\"RUNNING\"} 4\n"));
  EXPECT_THAT(page, HasSubstr("jobs/b\"}"));
  EXPECT_THAT(page, Not(HasSubstr("jobs/c\"}")));
}

core::NodeView node(const std::string& name, int devices = 4, int used = 1) {
  core::NodeView view;
  view.node.record.name = name;
  view.node.record.device = "cpu";
  view.node.record.devices = devices;
  view.node.state = core::NodeState::kReady;
  view.node.session = 1;
  view.devices_used = used;
  return view;
}

TEST(NodeGaugesTest, CountsNodesAndTheirDevices) {
  NodeGauges gauges(10, 10, kMoment);
  gauges.add(node("n1"), kMoment - absl::Seconds(1));
  core::NodeView cordoned = node("n2");
  cordoned.node.record.cordoned = true;
  gauges.add(cordoned, kMoment - absl::Seconds(2));
  core::NodeView lost = node("n3");
  lost.node.state = core::NodeState::kLost;
  lost.node.session = 0;
  gauges.add(lost, absl::Time());
  const std::string page = page_of(gauges);
  for (const char* line :
       {"titan_nodes{state=\"READY\"} 2", "titan_nodes{state=\"LOST\"} 1", "titan_nodes{state=\"REFUSED\"} 0",
        "titan_nodes_marked{mark=\"cordoned\"} 1", "titan_nodes_marked{mark=\"slow\"} 0", "titan_node_sessions 2",
        "titan_devices{device=\"cpu\",state=\"free\"} 3", "titan_devices{device=\"cpu\",state=\"used\"} 3",
        "titan_devices{device=\"cpu\",state=\"away\"} 6", "titan_node_heartbeat_age_seconds{node=\"n2\"} 2"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat(line, "\n")));
  }
  EXPECT_THAT(page, Not(HasSubstr("node=\"n3\""))) << "no beat arrived since this controller started";
}

// A worker was restarted with fewer devices while ranks run: the devices in use are still counted.
TEST(NodeGaugesTest, CountsMoreDevicesInUseThanANodeHas) {
  NodeGauges gauges(10, 10, kMoment);
  gauges.add(node("n1", /*devices=*/1, /*used=*/2), kMoment);
  gauges.add(node("n2", /*devices=*/4, /*used=*/1), kMoment);
  core::NodeView unusable = node("n3");
  unusable.node.state = core::NodeState::kUnusable;
  gauges.add(unusable, kMoment);
  const std::string page = page_of(gauges);
  for (const char* line :
       {"titan_devices{device=\"cpu\",state=\"used\"} 4", "titan_devices{device=\"cpu\",state=\"free\"} 3",
        "titan_devices{device=\"cpu\",state=\"away\"} 3", "titan_nodes{state=\"UNUSABLE\"} 1"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat(line, "\n")));
  }
}

// Beyond the cap, healthy nodes are left out before nodes that an alert would name.
TEST(NodeGaugesTest, BeyondTheCapLateNodesComeFirst) {
  NodeGauges gauges(2, 10, kMoment);
  gauges.add(node("n1"), kMoment - absl::Seconds(1));
  gauges.add(node("n2"), kMoment - absl::Seconds(2));
  gauges.add(node("n3"), kMoment - absl::Seconds(40));
  EXPECT_EQ(gauges.left_out(), 1u);
  const std::string page = page_of(gauges);
  EXPECT_THAT(page, HasSubstr("titan_node_heartbeat_age_seconds{node=\"n3\"} 40\n"));
  EXPECT_THAT(page, HasSubstr("titan_node_heartbeat_age_seconds{node=\"n1\"} 1\n"));
  EXPECT_THAT(page, Not(HasSubstr("node=\"n2\"")));
}

TEST(NodeGaugesTest, TenThousandNodesMakeASmallPage) {
  NodeGauges gauges(SeriesLimits().nodes, SeriesLimits().slow_ranks, kMoment);
  for (int i = 0; i < 10'000; ++i) gauges.add(node(absl::StrCat("n", i)), kMoment - absl::Milliseconds(i % 1000));
  EXPECT_EQ(gauges.left_out(), 9'000u);
  const std::string page = page_of(gauges);
  EXPECT_THAT(page, HasSubstr("titan_nodes{state=\"READY\"} 10000\n"));
  EXPECT_LT(page.size(), 100'000u);
}

TEST(NodeGaugesTest, SlowRanksAreCapped) {
  NodeGauges gauges(10, 1, kMoment);
  core::NodeView slow = node("n1");
  slow.slow.resize(3);
  for (int rank = 0; rank < 3; ++rank) {
    core::SlowRank& one = slow.slow[rank];
    one.job = "projects/default/jobs/a";
    one.rank = rank;
    one.node = "n1";
    one.figures.score = 0.5;
  }
  gauges.add(slow, kMoment);
  EXPECT_EQ(gauges.slow_ranks_left_out(), 2u);
  EXPECT_THAT(
      page_of(gauges),
      HasSubstr("titan_rank_straggler_score{node=\"n1\",rank=\"0\",titan_job=\"projects/default/jobs/a\"} 0.5"));
}

// The core's lock is held while a journal line is written: a scrape at that moment is still answered.
class ScrapingJournal : public journal::Journal {
 public:
  void write(const journal::Line&) override {
    if (!visit) return;
    std::thread([this] { page = visit(); }).join();  // Would never return if the scrape waited for the lock.
  }
  std::function<std::string()> visit;
  std::string page;
};

TEST(GaugesTest, ScrapesDoNotWaitForTheCoresLock) {
  const FakeClock clock;
  store::MemoryStore store;
  metrics::Metrics metrics;
  reconcile::Measures measures(metrics);
  const auto journal = std::make_shared<ScrapingJournal>();
  reconcile::ReconcilerOptions options;
  options.journal = journal;
  options.new_id = [] { return "id1"; };
  auto reconciler = *reconcile::Reconciler::open(store, clock, options, measures);
  metrics.add(std::make_shared<Gauges>(*reconciler, store));
  journal->visit = [&] { return metrics.text(); };
  v1::Register hello;
  hello.set_node("n1");
  hello.mutable_resources()->set_devices(1);
  ASSERT_TRUE(reconciler->open_session(hello, std::make_shared<reconcile::FakeSession>()).ok());
  store.run_pending();
  EXPECT_THAT(journal->page, HasSubstr("titan_nodes{state=")) << "no line was written";
  EXPECT_THAT(metrics.text(), HasSubstr("titan_node_sessions 1\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("titan_store_queue_transactions 0\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("titan_series_left_out{of=\"nodes\"} 0\n"));
}

}  // namespace
}  // namespace titan::api
