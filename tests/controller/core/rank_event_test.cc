#include "controller/core/rank_event.h"

#include <cmath>

#include "gtest/gtest.h"

namespace titan::core {
namespace {

TEST(RankEventTest, AStepHasTheFiguresThatAreThere) {
  const auto event =
      parse_rank_event(R"({"kind":"step","step":20,"metrics":{"loss_metrics/global_avg_loss":2.5,"grad_norm":"?"}})");
  ASSERT_TRUE(event.has_value());
  const auto& logged = std::get<StepLogged>(*event);
  EXPECT_EQ(logged.step, 20);
  EXPECT_EQ(logged.loss, 2.5);
  EXPECT_TRUE(std::isnan(logged.grad_norm.value()));
  EXPECT_FALSE(logged.mfu_percent.has_value());
  EXPECT_FALSE(logged.checkpoint_seconds.has_value());
}

TEST(RankEventTest, MembersThatAreMissingOrOfAnotherTypeCostNothingElse) {
  const auto committed = std::get<CheckpointCommitted>(
      parse_rank_event(R"({"kind":"checkpoint_committed","step":"10","full":true,"seconds":null})").value());
  EXPECT_EQ(committed.step, 0);
  EXPECT_TRUE(committed.is_full);
  EXPECT_FALSE(committed.seconds.has_value());
  EXPECT_EQ(std::get<Loaded>(parse_rank_event(R"({"kind":"loaded","step":1e300})").value()).step, 0);
}

TEST(RankEventTest, AnErrorIsOfTheSameJobUnlessItSaysOtherwise) {
  const auto error = [](const char* line) { return std::get<RankError>(parse_rank_event(line).value()); };
  EXPECT_TRUE(error(R"({"kind":"error","class":"fenced","reason":"STALE_ATTEMPT"})").is_same_job);
  EXPECT_FALSE(error(R"({"kind":"error","same_job":false,"holder_job":"j","holder_attempt":3})").is_same_job);
  EXPECT_EQ(error(R"({"kind":"error","same_job":true,"holder_attempt":3})").holder_attempt, 3);
}

TEST(RankEventTest, TrainingEndsInTwoWays) {
  EXPECT_TRUE(std::get<TrainingEnded>(parse_rank_event(R"({"kind":"stopped","step":7})").value()).is_stopped);
  EXPECT_FALSE(std::get<TrainingEnded>(parse_rank_event(R"({"kind":"finished","step":7})").value()).is_stopped);
}

TEST(RankEventTest, WhatMeansNothingHereIsNoEvent) {
  for (const char* line :
       {"", "[1]", "{", "7", R"({"kind":"phase","phase":"load"})", R"({"step":3})", R"({"kind":3})"}) {
    EXPECT_FALSE(parse_rank_event(line).has_value()) << line;
  }
}

}  // namespace
}  // namespace titan::core
