// The diagnosis of a hung attempt names the ranks and the place, in a report that stays readable for any number of
// ranks.

#include "controller/job/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "controller/job/record.h"

namespace titan::job {
namespace {

using rank_protocol::CallState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Makes the finding of a rank with `issued` all_reduce calls in a group of all ranks; the last one is open unless
// `done`.
RankFinding finding(int issued, bool done, int64_t elements = 8) {
  RankFinding found;
  found.node = "n1";
  found.alive = true;
  found.phase = "backward";
  found.step = 3;
  found.flight.groups.push_back({"tp", "0-3", 9, issued});
  for (int call = 1; call <= issued; ++call) {
    const auto state = done || call < issued ? CallState::kCompleted : CallState::kQueued;
    found.flight.calls.push_back(
        {0, call, "all_reduce", "float", call == issued ? elements : 8, 1, call - 1, call, state});
  }
  return found;
}

Findings four(int behind) {
  Findings findings;
  findings.world = 4;
  findings.stuck = true;
  for (int rank = 0; rank < 4; ++rank) {
    findings.ranks[rank] = finding(rank == behind ? 4 : 5, rank == behind);
    findings.ranks[rank].stacks =
        absl::StrCat("process ", 1000 + rank, "\n#0 ", rank == behind ? "spins" : "waits", "\n");
  }
  return findings;
}

TEST(DiagnosisTest, NamesTheMissingRank) {
  const DiagnosisRecord record = diagnose(four(2), "attempt 1");
  EXPECT_EQ(record.verdict, "rank 2 never came to all_reduce 5 of tp (ranks 0-3; 8 float)");
  EXPECT_THAT(record.ranks, ElementsAre(2));
  EXPECT_EQ(record.collective, "all_reduce 5 of tp (ranks 0-3)");
}

// Among ranks inside the same call, a stopped one holds up the others.
TEST(DiagnosisTest, RankStoppedInsideACallIsNamed) {
  Findings findings = four(-1);
  for (auto& [rank, finding] : findings.ranks) finding.flight.calls.back().state = CallState::kInside;
  EXPECT_THAT(diagnose(findings, "attempt 1").ranks, ElementsAre(0, 1, 2, 3));
  findings.ranks[3].stacks = "process 1003\n2 threads: 1003 (titan-rank) stopped, 1004 (pt_worker) stopped\n";
  const DiagnosisRecord record = diagnose(findings, "attempt 1");
  EXPECT_EQ(record.verdict,
            "rank 3 is in all_reduce 5 of tp (ranks 0-3; 8 float), which all ranks have entered, and does not return "
            "from it");
  findings.stuck = false;
  EXPECT_EQ(diagnose(findings, "attempt 1").verdict, "") << "one of them was killed: the others only wait";
}

// A message under way between a stopped rank and its peer is in no record, so that each seems to wait for the other.
TEST(DiagnosisTest, StoppedRankIsNamedWhenNoCallAccountsForTheHang) {
  Findings findings = four(-1);
  for (auto& [rank, finding] : findings.ranks) finding.flight.calls.clear();
  EXPECT_EQ(diagnose(findings, "attempt 1").verdict, "");
  findings.ranks[1].stacks = "process 1001\n1 thread: 1001 (titan-rank) stopped\n";
  const DiagnosisRecord record = diagnose(findings, "attempt 1");
  EXPECT_EQ(record.verdict, "rank 1 is stopped (by a signal or a debugger)");
  EXPECT_THAT(record.ranks, ElementsAre(1));
  EXPECT_THAT(record.report, HasSubstr(record.verdict));
  findings.stuck = false;
  EXPECT_EQ(diagnose(findings, "attempt 1").verdict, "") << "a rank failed by itself";
}

TEST(DiagnosisTest, EqualStacksShareABlockAfterTheCulprits) {
  const std::string report = diagnose(four(2), "attempt 1").report;
  EXPECT_THAT(report, HasSubstr("\nstacks of rank 2\n"));
  EXPECT_THAT(report, HasSubstr("\nstacks of ranks 0-1,3, here of rank 0\n"));
  EXPECT_LT(report.find("#0 spins"), report.find("#0 waits"));
  EXPECT_THAT(report, HasSubstr("rank 0 on n1: step 3, backward; waits for all_reduce 5 of tp (ranks 0-3; 8 float)"));
}

// A rank's file also has a rank number, but the rank could have written anything there: the number that the node
// reports counts.
TEST(DiagnosisTest, RankNumberOfTheNodeCounts) {
  Findings findings = four(2);
  for (auto& [rank, found] : findings.ranks) found.flight.rank = 7;
  EXPECT_THAT(diagnose(findings, "").ranks, ElementsAre(2));
}

TEST(DiagnosisTest, AttemptThatWasCutShortReportsOnlyDisagreements) {
  Findings cut = four(2);
  cut.stuck = false;
  EXPECT_EQ(diagnose(cut, "").verdict, "") << "its absence follows from the cut";
  Findings other;
  other.world = 4;
  for (int rank = 0; rank < 4; ++rank) other.ranks[rank] = finding(5, false, rank == 1 ? 9 : 8);
  EXPECT_THAT(diagnose(other, "").verdict, HasSubstr("rank 1 "));
}

TEST(DiagnosisTest, MissingAnswersAreReported) {
  Findings findings = four(2);
  findings.ranks.erase(0);
  findings.ranks.at(1).stacks.clear();
  findings.ranks.at(1).stacks_missing = "its shim does not answer";
  const std::string report = diagnose(findings, "attempt 1").report;
  EXPECT_THAT(report, HasSubstr("no answer from the nodes of rank 0\n"));
  EXPECT_THAT(report, HasSubstr("no stacks of rank 1: its shim does not answer\n"));
  EXPECT_THAT(diagnose({.world = 2}, "t").report, HasSubstr("no answer from the nodes of ranks 0-1"));
}

TEST(DiagnosisTest, TenThousandRanksGiveAReportThatFits) {
  Findings findings;
  findings.world = 10'000;
  findings.stuck = true;
  for (int rank = 0; rank < findings.world; ++rank) {
    RankFinding& found = findings.ranks[rank] = finding(rank == 777 ? 4 : 5, rank == 777);
    found.stacks =
        std::string(2000, static_cast<char>('a' + rank % 26)) + std::string(rank / 26, 'x');  // All stacks differ.
  }
  const DiagnosisRecord record = diagnose(findings, "attempt 1");
  EXPECT_THAT(record.ranks, ElementsAre(777));
  EXPECT_LE(record.report.size(), kMaxReport);
  EXPECT_THAT(record.report, HasSubstr("stacks of rank 777"));
  EXPECT_THAT(record.report, HasSubstr(" more ranks are omitted here"));
  EXPECT_THAT(record.report, Not(HasSubstr("rank 9999 on n1")));
}

TEST(DiagnosisTest, RequestedCallsAreBounded) {
  EXPECT_GE(max_calls(8), 512) << "all calls that a rank records";
  EXPECT_LE(int64_t{10'000} * max_calls(10'000), 1 << 20);
  EXPECT_GE(max_calls(1'000'000), 32);
}

TEST(DiagnosisTest, RecordRoundTrips) {
  const DiagnosisRecord record = {2, 77, "rank 1 \"x\"", {1, 3}, "all_gather 3 of tp (ranks 0-3)", "a\nb\xff"};
  const auto back = decode<DiagnosisRecord>(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->verdict, record.verdict);
  EXPECT_EQ(back->ranks, record.ranks);
  EXPECT_EQ(back->time_ns, 77);
  EXPECT_THAT(back->report, HasSubstr("a\nb"));
}

}  // namespace
}  // namespace titan::job
