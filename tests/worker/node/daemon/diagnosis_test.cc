// A node's diagnosis of hung ranks before they are ended, with a real shim, titan-stacks and stand-in ranks.

#include "gmock/gmock.h"
#include "tests/worker/node/daemon/daemon_case.h"

namespace titan::daemon {
namespace {

using ::testing::HasSubstr;

class DiagnosisTest : public DaemonTest {};

TEST_F(DiagnosisTest, RanksAreExaminedAndKeepRunning) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 2, {}));
  const std::map<int, v1::RankStatus> before = beat_ranks();
  ASSERT_FALSE(before.empty());
  ::kill(static_cast<pid_t>(before.begin()->second.pid()), SIGSTOP);
  const std::vector<v1::Diagnosis> answers = diagnose(1, /*stacks=*/true);
  ASSERT_EQ(answers.size(), 2U);
  for (const v1::Diagnosis& one : answers) {
    EXPECT_TRUE(one.rank().alive());
    EXPECT_THAT(one.rank().stacks(), HasSubstr("fake_rank"));
    EXPECT_EQ(one.rank().flight_missing(), "it recorded none");
    EXPECT_EQ(one.id().job_uid(), "u1");
  }
  EXPECT_EQ(answers[0].rank().status().rank(), 0);
  EXPECT_EQ(answers[1].rank().status().rank(), 1);
  ::kill(static_cast<pid_t>(before.begin()->second.pid()), SIGCONT);
  controller_.send("n1", stop(1, /*save=*/true, 20'000));
  EXPECT_TRUE(reported(1, Report::ENDED)) << "they kept training and stopped on request";
  EXPECT_EQ(last(1).exits(0).exit_code(), 16);
}

TEST_F(DiagnosisTest, ReportsRanksThatHaveEnded) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"steps", 1}, {"exit_code", 12}}));
  ASSERT_TRUE(reported(1, Report::ENDED));
  const std::vector<v1::Diagnosis> answers = diagnose(1, /*stacks=*/true);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_FALSE(answers[0].rank().alive());
  EXPECT_EQ(answers[0].rank().stacks_missing(), "it had ended");
}

TEST_F(DiagnosisTest, UnknownAttemptHasNoRanks) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(connected());
  const std::vector<v1::Diagnosis> answers = diagnose(5, /*stacks=*/true);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_FALSE(answers[0].has_rank());
}

}  // namespace
}  // namespace titan::daemon
