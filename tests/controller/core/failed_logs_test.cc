// The ends of failed ranks' logs are stored with the attempt whatever happens to nodes and controller. They are few and
// bounded, and are deleted with the attempt or the job.

#include "common/rank_protocol/failed_ranks.h"
#include "controller/core/keys.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class FailedLogsTest : public ::testing::Test, protected World {
 protected:
  // Ends the rank; its node reports the exit together with the end of the log.
  void fail(FakeNode& node, const std::string& id, int rank, const std::string& log, const std::string& words = "") {
    const FakeNode::Key now = key(id);
    FakeNode::Attempt& attempt = node.attempts.at(now);
    attempt.gone.insert(rank);
    if (attempt.gone.size() == attempt.ranks.size()) attempt.phase = v1::AttemptReport::ENDED;
    v1::RankExitReport& exit = attempt.exits.emplace_back();
    exit.set_rank(rank);
    exit.set_exit_code(1);
    exit.set_last_words(words);
    exit.set_log_tail(log);
    exit.set_log_offset(100);
    exit.set_time_unix_nanos(absl::ToUnixNanos(clock.now()));
    deliver(node, report(now, attempt));
  }
  std::vector<store::Record> stored_logs(const std::string& id) {
    return *store::scan_all(store, core::job_failed_logs_prefix(job(id)->record->uid));
  }
  std::string stored_log(const std::string& id, int attempt, int rank) {
    const auto record = store.get(core::failed_log_key(job(id)->record->uid, attempt, rank));
    if (!record.ok() || !*record) return "";
    return job::decode<job::FailedLog>((*record)->value)->text;
  }
  int64_t reported_log_bytes(const std::string& id, size_t attempt, int rank) {
    for (const job::RankExit& exit : job(id)->attempts.at(attempt)->exits) {
      if (exit.rank == rank) return exit.kept_log_bytes;
    }
    return -1;
  }
  // Waits for the start of the next attempt.
  void restart(const std::string& id) {
    for (int i = 0; i < 200 && state(id) != "STARTING"; ++i) {
      clock.advance(absl::Seconds(1));
      for (auto& [name, node] : nodes) beat(node);
      reconciler->tick();
      settle();
    }
    ASSERT_EQ(state(id), "STARTING");
  }
};

TEST_F(FailedLogsTest, OutlivesItsNodeAndTheController) {
  FakeNode& node = add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 2, 0)).ok());
  fail(node, "a", 1, "step 7\nSegmentation fault\n");
  settle();
  EXPECT_EQ(stored_log("a", 1, 1), "step 7\nSegmentation fault\n");
  destroy(node);
  crash();
  EXPECT_EQ(stored_log("a", 1, 1), "step 7\nSegmentation fault\n");
  EXPECT_EQ(reported_log_bytes("a", 0, 1), 26);
}

// The exit and the end of the log are one write: after a crash both or neither exist, and then both are reported again.
TEST_F(FailedLogsTest, IsWrittenWithTheExitOrNotAtAll) {
  FakeNode& node = add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 2, 0)).ok());
  fail(node, "a", 0, "the end\n");
  crash();  // Before the write is durable.
  EXPECT_TRUE(stored_logs("a").empty());
  EXPECT_TRUE(store::scan_all(store, core::job_exits_prefix(job("a")->record->uid))->empty());
  connect(node);
  deliver(node, report(key("a"), node.attempts.at(key("a"))));
  settle();
  EXPECT_EQ(stored_log("a", 1, 0), "the end\n");
}

TEST_F(FailedLogsTest, LogMayArriveAfterItsExit) {
  FakeNode& node = add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 2, 0)).ok());
  stops_at_once = false;  // The other rank continues for a while.
  fail(node, "a", 0, "");
  settle();
  EXPECT_TRUE(stored_logs("a").empty()) << "a worker of an older version reports no more than this";
  node.attempts.at(key("a")).exits[0].set_log_tail("late\n");
  deliver(node, report(key("a"), node.attempts.at(key("a"))));
  settle();
  EXPECT_EQ(stored_log("a", 1, 0), "late\n");
  exit_rank(node, key("a"), 1, -1, 9, "stopped");
  settle();
  EXPECT_EQ(reported_log_bytes("a", 0, 0), 5) << "the attempt's record has it, too";
}

TEST_F(FailedLogsTest, LogsOfSuccessfulRanksAreNotKept) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  FakeNode::Attempt& attempt = node.attempts.at(key("a"));
  v1::RankExitReport& exit = attempt.exits.emplace_back();
  exit.set_log_tail("all is well\n");
  attempt.gone.insert(0);
  attempt.phase = v1::AttemptReport::ENDED;
  deliver(node, report(key("a"), attempt));
  settle();
  EXPECT_EQ(state("a"), "SUCCEEDED");
  EXPECT_TRUE(stored_logs("a").empty());
}

// Ten thousand ranks fail at once, and every tenth one reports a log that is far too long.
TEST_F(FailedLogsTest, TenThousandFailedRanksLeaveFewRecords) {
  constexpr int kNodes = 100, kRanks = 100;
  for (int i = 0; i < kNodes; ++i) add_node(absl::StrCat("n", i), kRanks);
  ASSERT_TRUE(submit(spec("a", kNodes * kRanks, 0)).ok());
  advance(absl::Seconds(2));  // The scheduler waits a moment for more nodes.
  ASSERT_FALSE(job("a")->attempts.empty()) << job("a")->pending_message;
  const FakeNode::Key now = key("a");
  stops_at_once = false;
  const std::string log(2 * static_cast<size_t>(rank_protocol::kFailedLogBytes), '\x01');
  for (auto& [name, node] : nodes) {
    FakeNode::Attempt& attempt = node.attempts.at(now);
    v1::WorkerMessage message = report(now, attempt);
    for (const int rank : attempt.ranks) {
      v1::RankExitReport* const exit = message.mutable_attempt()->add_exits();
      exit->set_rank(rank);
      exit->set_exit_code(1);
      exit->set_last_words(std::string(static_cast<size_t>(rank % 150), 'w'));
      if (rank % 10 == 0) exit->set_log_tail(log);
    }
    deliver(node, message);
  }
  settle();
  const std::vector<store::Record> records = stored_logs("a");
  EXPECT_EQ(records.size(), rank_protocol::kFailedLogs);
  for (const store::Record& record : records) {
    EXPECT_LE(job::decode<job::FailedLog>(record.value)->text.size(),
              static_cast<size_t>(rank_protocol::kFailedLogBytes));
  }
  crash();
  EXPECT_EQ(stored_logs("a").size(), rank_protocol::kFailedLogs);
}

TEST_F(FailedLogsTest, RepeatedFailuresKeepTheNewestLogs) {
  FakeNode& node = add_node("n1");
  job::SchedulingSpec stubborn = spec("a", 1, 0);
  stubborn.restart.no_progress_limit = 100;
  ASSERT_TRUE(submit(stubborn).ok());
  for (int attempt = 1; attempt <= 6; ++attempt) {
    fail(node, "a", 0, absl::StrCat("attempt ", attempt, "\n"));
    settle();
    if (attempt == 4) crash(), connect(node);
    restart("a");
  }
  EXPECT_EQ(stored_logs("a").size(), 3u);
  EXPECT_EQ(stored_log("a", 4, 0), "attempt 4\n");
  EXPECT_EQ(stored_log("a", 6, 0), "attempt 6\n");
  EXPECT_EQ(reported_log_bytes("a", 2, 0), 0) << "evicted logs are not reported";
  EXPECT_EQ(reported_log_bytes("a", 3, 0), 10);
}

// However many jobs fail, the oldest logs are evicted, even those of finished jobs, and their attempts record it.
TEST_F(FailedLogsTest, NewestLogsOfAllJobsAreKept) {
  kept_logs_bytes = 25;
  crash();
  FakeNode& node = add_node("n1", 3);
  for (const char* id : {"a", "b", "c"}) {
    job::SchedulingSpec once = spec(id, 1, 0);
    once.restart.no_progress_limit = id[0] == 'a' ? 0 : 100;
    ASSERT_TRUE(submit(once).ok());
    fail(node, id, 0, absl::StrCat("ten of ", id, "\n\n"));
    settle();
  }
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(stored_log("a", 1, 0), "");
  EXPECT_EQ(reported_log_bytes("a", 0, 0), 0);
  EXPECT_EQ(job("a")->attempts[0]->logs_dropped, job::kNoSpace);
  EXPECT_EQ(stored_log("b", 1, 0), "ten of b\n\n");
  EXPECT_THAT(metrics_.text(), ::testing::HasSubstr("\ntitan_kept_logs_bytes 20\n"));
  EXPECT_THAT(metrics_.text(), ::testing::HasSubstr("titan_kept_logs_dropped_bytes_total{reason=\"NO_ROOM\"} 10\n"));

  kept_logs_bytes = 15;
  crash();
  settle();
  EXPECT_EQ(stored_logs("b").size(), 0u) << "a start with a lower limit enforces it";
  EXPECT_EQ(stored_logs("c").size(), 1u);
  EXPECT_THAT(metrics_.text(), ::testing::HasSubstr("\ntitan_kept_logs_bytes 10\n"));
}

// The log is kept although the controller ended the rank, because a verdict named the rank.
TEST_F(FailedLogsTest, LogsOfRanksThatAVerdictNamesAreKept) {
  job::AttemptRecord attempt;
  FakeNode& node = add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 2, 0)).ok());
  stops_at_once = false;
  attempt = *job("a")->attempts.at(0);
  attempt.named_ranks = {1};
  std::vector<store::Record> records = copy_store();
  for (store::Record& record : records) {
    if (record.key == core::attempt_key(job("a")->record->uid, 1)) record.value = job::encode(attempt);
  }
  crash_to(records);
  connect(node);
  FakeNode::Attempt& running = node.attempts.at(key("a"));
  for (const int rank : {0, 1}) {
    v1::RankExitReport& exit = running.exits.emplace_back();
    exit.set_rank(rank);
    exit.set_signal(9);
    exit.set_stop_reason("HANG");
    exit.set_log_tail("waits for a lock\n");
    running.gone.insert(rank);
  }
  running.phase = v1::AttemptReport::ENDED;
  deliver(node, report(key("a"), running));
  settle();
  EXPECT_EQ(stored_log("a", 1, 0), "");
  EXPECT_EQ(stored_log("a", 1, 1), "waits for a lock\n");
}

// Logs of an unfinished attempt are not evicted. If they fill the limit, later logs are dropped.
TEST_F(FailedLogsTest, UnfinishedAttemptKeepsItsLogs) {
  kept_logs_bytes = 15;
  crash();
  FakeNode& node = add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 2, 0)).ok());
  stops_at_once = false;
  fail(node, "a", 0, "the first\n");
  fail(node, "a", 1, "the second\n");
  settle();
  EXPECT_EQ(stored_log("a", 1, 0), "the first\n");
  EXPECT_EQ(stored_logs("a").size(), 1u);
  EXPECT_EQ(job("a")->attempts[0]->logs_dropped, job::kNoSpace);
}

// The logs of a job that is being deleted go with it: evicting them must not write its records again.
TEST_F(FailedLogsTest, EvictionDoesNotRewriteADeletedJob) {
  kept_logs_bytes = 15;
  crash();
  FakeNode& node = add_node("n1", 2);
  job::SchedulingSpec once = spec("a", 1, 0);
  once.restart.no_progress_limit = 0;
  ASSERT_TRUE(submit(once).ok());
  fail(node, "a", 0, "the first\n");
  settle();
  ASSERT_TRUE(submit(spec("b", 1, 0)).ok());
  const std::string uid = job("a")->record->uid;
  reconciler->remove(uid, [](const absl::StatusOr<JobViewPtr>&) {});
  fail(node, "b", 0, "the second\n");
  settle();
  EXPECT_TRUE(store::scan_all(store, core::attempts_prefix(uid))->empty());
  EXPECT_EQ(stored_logs("b").size(), 1u);
}

TEST_F(FailedLogsTest, LogsAreDeletedWithTheirJob) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  fail(node, "a", 0, "the end\n");
  settle();
  const std::string uid = job("a")->record->uid;
  EXPECT_EQ(stored_logs("a").size(), 1u);
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  absl::Status removed = absl::InternalError("never answered");
  reconciler->remove(uid, [&](const absl::StatusOr<JobViewPtr>& result) { removed = result.status(); });
  settle();
  ASSERT_TRUE(removed.ok()) << removed;
  EXPECT_TRUE(store::scan_all(store, core::job_failed_logs_prefix(uid))->empty());
}

}  // namespace
}  // namespace titan::reconcile
