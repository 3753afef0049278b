// A hung attempt is diagnosed before any part of it is killed or forgotten: a rank that diverged is named, and a node
// without an answer does not delay it.

#include <limits>

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = v1::ControllerMessage;

constexpr char kVerdict[] = "rank 1 never came to all_gather 5 of fsdp (ranks 0-1; 64 float)";

class DiagnosisTest : public ::testing::Test, protected World {
 protected:
  void SetUp() override {
    for (const char* name : {"n1", "n2"}) {
      FakeNode& node = nodes.emplace(name, FakeNode(name)).first->second;
      node.diagnoses = true;
      connect(node);
    }
    job::SchedulingSpec wanted = spec("a");
    wanted.restart.train_timeout_seconds = 4;
    ASSERT_TRUE(submit(wanted).ok());
    loaded("a", 0);
    train("a", 1);
    advance(absl::Seconds(1));
    for (auto& [name, node] : nodes) node.attempts.at(key("a")).rank_phase = "forward";
    second().attempts.at(key("a")).behind[1] = 1;
    attempt = key("a");
  }
  FakeNode& first() { return nodes.at("n1"); }
  FakeNode& second() { return nodes.at("n2"); }
  // Makes rank 0 time out in the collective in which it waits for rank 1.
  void time_out() {
    event(first(), attempt, 0,
          R"({"kind":"error","class":"peer","reason":"COLLECTIVE_TIMEOUT","message":"all_gather timed out"})");
    exit_rank(first(), attempt, 0, rank_protocol::kExitPeerLost, 0);
    settle();
  }
  int stops() { return second().count(Kind::kStop); }
  absl::StatusOr<job::DiagnosisRecord> diagnosis(int number = 1) {
    return reconciler->diagnosis(job("a")->record->uid, number);
  }
  const job::AttemptRecord& ended() { return *job("a")->attempts.at(0); }

  FakeNode::Key attempt;
};

TEST_F(DiagnosisTest, AwaitedRankIsNamedBeforeItIsKilled) {
  second().reports_findings = false;
  time_out();
  EXPECT_EQ(second().count(Kind::kDiagnose), 1);
  EXPECT_EQ(stops(), 0) << "not before its node has reported its findings";
  EXPECT_EQ(state("a"), "RECOVERING");
  report_findings(second(), second().received.back().diagnose().id());
  settle();
  EXPECT_EQ(stops(), 1);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(ended().end_cause, "HANG");
  EXPECT_THAT(ended().end_message, StartsWith(kVerdict));
  EXPECT_THAT(ended().end_message, HasSubstr("all_gather timed out"));
  EXPECT_EQ(ended().verdict, kVerdict);
  EXPECT_EQ(count_events("a", "AttemptDiagnosed"), 1);
  const auto record = diagnosis();
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_THAT(record->ranks, ::testing::ElementsAre(1));
  EXPECT_EQ(record->collective, "all_gather 5 of fsdp (ranks 0-1)");
  EXPECT_THAT(record->report, HasSubstr("rank 1 on n2: step 0, forward; does not wait; last all_gather 4 of fsdp"));
  EXPECT_THAT(record->report, HasSubstr("rank 0 on n1 (ended): step 0, forward; waits for all_gather 5 of fsdp"));
  EXPECT_LT(record->report.find("where_rank_1_is"), record->report.find("where_rank_0_is")) << "the culprit first";
}

// The controller ended the rank that the verdict names; it did not fail by itself. Its log is the one to read.
TEST_F(DiagnosisTest, StopRequestsTheNamedRanksLogTail) {
  time_out();
  ASSERT_EQ(stops(), 1);
  const auto is_stop = [](const Kind& message) { return message.has_stop(); };
  const auto stop = std::find_if(second().received.begin(), second().received.end(), is_stop);
  ASSERT_NE(stop, second().received.end());
  EXPECT_THAT(stop->stop().named_ranks(), ::testing::ElementsAre(1));
  EXPECT_THAT(ended().named_ranks, ::testing::ElementsAre(1));
}

// The first failure may be reported last.
TEST_F(DiagnosisTest, PeerLossThatNamesTheFirstFailureIsDiagnosed) {
  event(
      first(), attempt, 0,
      R"({"kind":"error","class":"peer","reason":"PEER_LOST","message":"lost; the first to fail was rank 3: COLLECTIVE_TIMEOUT: all_gather"})");
  exit_rank(first(), attempt, 0, rank_protocol::kExitPeerLost, 0);
  settle();
  EXPECT_EQ(ended().verdict, kVerdict);
}

TEST_F(DiagnosisTest, HangFoundByTheControllerIsDiagnosed) {
  advance(absl::Seconds(15));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(ended().end_cause, "HANG");
  EXPECT_THAT(ended().end_message, StartsWith(kVerdict));
  EXPECT_THAT(ended().end_message, HasSubstr("no rank has made progress"));
  EXPECT_TRUE(diagnosis().ok());
}

TEST_F(DiagnosisTest, SilentNodeDelaysTheStopByFewSeconds) {
  second().reports_findings = false;
  time_out();
  advance(absl::Seconds(5));
  EXPECT_EQ(stops(), 0);
  advance(absl::Seconds(3));
  EXPECT_EQ(stops(), 1);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  ASSERT_TRUE(diagnosis().ok());
  EXPECT_THAT(diagnosis()->report, HasSubstr("no answer from the nodes of rank 1"));
}

TEST_F(DiagnosisTest, NodesOfAnOlderVersionAreNotQueried) {
  for (auto& [name, node] : nodes) {
    node.diagnoses = false;
    connect(node);
  }
  time_out();
  EXPECT_EQ(second().count(Kind::kDiagnose), 0);
  ASSERT_EQ(job("a")->attempts.size(), 2u) << "the restart does not wait for findings that cannot come";
  EXPECT_FALSE(diagnosis().ok());
}

TEST_F(DiagnosisTest, KilledRankNeedsNoDiagnosis) {
  exit_rank(first(), attempt, 0, -1, 9);
  settle();
  EXPECT_EQ(first().count(Kind::kDiagnose), 0);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_FALSE(ended().diagnosed);
}

// NCCL's watchdog ends the process of a waiting rank with these words and without an error event.
TEST_F(DiagnosisTest, RankEndedByAWatchdogIsDiagnosedAsAHang) {
  exit_rank(first(), attempt, 0, rank_protocol::kExitPeerLost, 0, "",
            "titan-rank: PEER_LOST: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)");
  settle();
  EXPECT_EQ(second().count(Kind::kDiagnose), 1);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(ended().end_cause, "HANG");
  EXPECT_EQ(ended().verdict, kVerdict);
}

// Gloo aborts a process that receives another size than it expects: no live process can report it.
TEST_F(DiagnosisTest, AbortReportsOnlyDisagreements) {
  exit_rank(first(), attempt, 0, -1, 6);
  settle();
  EXPECT_EQ(second().count(Kind::kDiagnose), 1);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(ended().end_cause, "RANK_KILLED");
  EXPECT_FALSE(ended().diagnosed) << "that a rank had not come yet follows from the abort";
}

TEST_F(DiagnosisTest, UnansweredDiagnosisIsRequestedAgainAfterACrash) {
  second().reports_findings = false;
  time_out();
  crash();
  second().reports_findings = true;
  connect_all();
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(ended().end_cause, "HANG");
  EXPECT_THAT(ended().end_message, StartsWith(kVerdict));
  EXPECT_TRUE(diagnosis().ok());
}

TEST_F(DiagnosisTest, StoredDiagnosisIsNotRequestedAgainAfterACrash) {
  stops_at_once = false;
  time_out();
  ASSERT_EQ(count_events("a", "AttemptDiagnosed"), 1);
  crash();
  stops_at_once = true;
  connect_all();
  settle();
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(count_events("a", "AttemptDiagnosed"), 1);
  EXPECT_THAT(ended().end_message, StartsWith(kVerdict));
}

TEST_F(DiagnosisTest, ReturningNodeIsQueriedAgain) {
  second().reports_findings = false;
  time_out();
  disconnect(second());
  second().reports_findings = true;
  connect(second());
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_THAT(ended().end_message, StartsWith(kVerdict));
}

TEST_F(DiagnosisTest, LostNodeIsNotWaitedFor) {
  second().reports_findings = false;
  time_out();
  silent.insert("n2");
  advance(absl::Seconds(7));
  ASSERT_TRUE(ended().diagnosed);
  EXPECT_NE(ended().end_cause, "");
}

TEST_F(DiagnosisTest, EndedAttemptIsForgottenOnlyOnceDiagnosed) {
  first().reports_findings = second().reports_findings = false;
  time_out();
  exit_rank(second(), attempt, 1, rank_protocol::kExitPeerLost, 0);
  settle();
  EXPECT_EQ(first().count(Kind::kForget), 0) << "its files are still needed";
  report_findings(first(), second().received.back().diagnose().id());
  report_findings(second(), second().received.back().diagnose().id());
  settle();
  EXPECT_EQ(first().count(Kind::kForget), 1);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
}

// Another node's report about these ranks is ignored, and so is one about an attempt without a request.
TEST_F(DiagnosisTest, FindingsOfOtherNodesAreIgnored) {
  FakeNode& other = add_node("n3");
  second().reports_findings = false;
  other.attempts[attempt].ranks = {0, 1};
  v1::AttemptId id;
  id.set_job_uid(attempt.first);
  id.set_number(1);
  report_findings(other, id);
  time_out();
  report_findings(other, id);
  settle();
  EXPECT_EQ(stops(), 0) << "the queried node has not answered";
  other.attempts.clear();
}

// A node may send anything about its ranks: invalid groups, impossible numbers, endless text.
TEST_F(DiagnosisTest, InvalidFindingsGiveABoundedReport) {
  second().reports_findings = false;
  time_out();
  v1::WorkerMessage message;
  v1::Diagnosis& answer = *message.mutable_diagnosis();
  answer.mutable_id()->set_job_uid(attempt.first);
  answer.mutable_id()->set_number(1);
  answer.set_end(true);
  v1::RankDiagnosis& rank = *answer.mutable_rank();
  rank.mutable_status()->set_rank(1);
  rank.set_stacks(std::string(3 << 20, 'x'));
  for (const int group : {-1, 0, 7, 1 << 30}) {
    v1::FlightCall& call = *rank.add_calls();
    call.set_group(group);
    call.set_sequence(std::numeric_limits<int64_t>::min());
    call.set_elements(-1);
    call.set_mark(std::numeric_limits<int64_t>::max());
  }
  rank.add_groups()->set_issued(std::numeric_limits<int64_t>::max());
  deliver(second(), message);
  settle();
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  ASSERT_TRUE(diagnosis().ok());
  EXPECT_LE(diagnosis()->report.size(), job::kMaxReport);
}

TEST_F(DiagnosisTest, CancelDoesNotWaitForTheDiagnosis) {
  second().reports_findings = false;
  time_out();
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  EXPECT_EQ(stops(), 1);
}

TEST_F(DiagnosisTest, DiagnosisIsDeletedWithItsJob) {
  time_out();
  ASSERT_TRUE(diagnosis().ok());
  const std::string uid = job("a")->record->uid;
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  settle();
  reconciler->remove(uid, [](const auto&) {});
  settle();
  EXPECT_FALSE(reconciler->diagnosis(uid, 1).ok());
}

}  // namespace
}  // namespace titan::reconcile
