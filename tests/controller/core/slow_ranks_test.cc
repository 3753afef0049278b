// A rank with a slow part of each step is reported, and nothing else happens.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SlowRanksTest : public ::testing::Test, protected World {
 protected:
  void SetUp() override {
    add_node("n1", 2);
    add_node("n2", 2);
    ASSERT_TRUE(submit(spec("a", 4, 2)).ok());
    loaded("a", 0);
  }
  // Trains for `time` with steps of half a second; `own` has the milliseconds of each rank's own work per step.
  void run(absl::Duration time, const std::map<int, int64_t>& own) {
    for (absl::Duration passed; passed < time; passed += absl::Milliseconds(500)) {
      for (auto& [name, node] : nodes) {
        const auto attempt = node.attempts.find(key(name_));
        if (attempt == node.attempts.end()) continue;
        for (const int rank : attempt->second.ranks) {
          FakeNode::OwnTime& total = attempt->second.own[rank];
          ++total.steps;
          total.nanos += own.at(rank) * 1'000'000;
        }
      }
      train(name_, ++step_);
      advance(absl::Milliseconds(500));
    }
  }
  job::EventRecord last_event(const std::string& reason) {
    job::EventRecord found;
    const auto records = store::scan_all(store, job_events_prefix(job("a")->record->uid));
    for (const auto& record : *records) {
      auto event = *job::decode<job::EventRecord>(record.value);
      if (event.reason == reason) found = std::move(event);
    }
    return found;
  }

  std::string name_ = "a";
  int64_t step_ = 0;
};

TEST_F(SlowRanksTest, ReportsTheRankItsNodeAndItsScore) {
  run(absl::Minutes(2), {{0, 100}, {1, 110}, {2, 90}, {3, 100}});
  EXPECT_EQ(count_events("a", "RankSlow"), 0);
  run(absl::Seconds(33), {{0, 100}, {1, 110}, {2, 90}, {3, 400}});
  ASSERT_EQ(count_events("a", "RankSlow"), 1);
  const job::EventRecord event = last_event("RankSlow");
  EXPECT_EQ(event.rank, 3);
  EXPECT_EQ(event.node, "n2");
  EXPECT_EQ(event.attempt, 1);
  EXPECT_EQ(event.severity, "warning");
  EXPECT_EQ(event.message,
            "rank 3 on n2 is slow: its own time per step is 400.0 ms, its peers' is 100.0 ms (score 0.25)");
  ASSERT_THAT(job("a")->slow, SizeIs(1));
  EXPECT_EQ(job("a")->slow[0].rank, 3);

  const NodeView n2 = *reconciler->node("n2");
  ASSERT_THAT(n2.slow, SizeIs(1));
  EXPECT_EQ(n2.slow[0].job, "projects/default/jobs/a");
  EXPECT_FALSE(n2.is_slow) << "one slow rank of two does not make the node slow";
  EXPECT_THAT(reconciler->node("n1")->slow, IsEmpty());

  run(absl::Seconds(33), {{0, 100}, {1, 110}, {2, 380}, {3, 400}});
  EXPECT_EQ(count_events("a", "RankSlow"), 2);
  EXPECT_TRUE(reconciler->node("n2")->is_slow);
  EXPECT_FALSE(reconciler->node("n1")->is_slow);

  EXPECT_FALSE(reconciler->node("n2")->node.record.cordoned);
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  EXPECT_EQ(state("a"), "RUNNING");
}

TEST_F(SlowRanksTest, RecoveredPaceIsReported) {
  run(absl::Seconds(45), {{0, 100}, {1, 100}, {2, 100}, {3, 400}});
  ASSERT_EQ(count_events("a", "RankSlow"), 1);
  run(absl::Seconds(43), {{0, 100}, {1, 100}, {2, 100}, {3, 100}});
  EXPECT_EQ(count_events("a", "RankPaceRecovered"), 1);
  EXPECT_THAT(last_event("RankPaceRecovered").message, HasSubstr("rank 3 on n2 keeps pace again"));
  EXPECT_THAT(job("a")->slow, IsEmpty());
}

TEST_F(SlowRanksTest, NewAttemptStartsFromScratch) {
  run(absl::Seconds(45), {{0, 100}, {1, 100}, {2, 100}, {3, 400}});
  ASSERT_THAT(job("a")->slow, SizeIs(1));
  finish_all("a", -1, 9);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_THAT(job("a")->slow, IsEmpty());
  loaded("a", 0);
  run(absl::Seconds(25), {{0, 100}, {1, 100}, {2, 100}, {3, 400}});
  EXPECT_EQ(count_events("a", "RankSlow"), 1) << "two windows of the new attempt";
}

TEST_F(SlowRanksTest, StagesAreComparedWithinThemselves) {
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  job::SchedulingSpec staged = spec("b", 4, 2);
  staged.mesh = {{"pp", 2}};
  ASSERT_TRUE(submit(staged).ok());
  name_ = "b";
  loaded("b", 0);
  run(absl::Minutes(1), {{0, 100}, {1, 100}, {2, 300}, {3, 300}});
  EXPECT_EQ(count_events("b", "RankSlow"), 0);
  run(absl::Minutes(1), {{0, 100}, {1, 200}, {2, 300}, {3, 300}});
  EXPECT_EQ(count_events("b", "RankSlow"), 1);
  ASSERT_THAT(job("b")->slow, SizeIs(1));
  EXPECT_EQ(job("b")->slow[0].rank, 1);
}

}  // namespace
}  // namespace titan::reconcile
