#include "controller/reconcile/decode_rank_event.h"

#include <cmath>

#include "gtest/gtest.h"

namespace titan::reconcile {
namespace {

TEST(DecodeRankEventTest, StepHasOnlyTheReportedFigures) {
  const auto event =
      decode_rank_event(R"({"kind":"step","step":20,"metrics":{"loss_metrics/global_avg_loss":2.5,"grad_norm":"?"}})");
  ASSERT_TRUE(event.has_value());
  const auto& logged = std::get<core::StepLogged>(*event);
  EXPECT_EQ(logged.step, 20);
  EXPECT_EQ(logged.loss, 2.5);
  EXPECT_TRUE(std::isnan(logged.grad_norm.value()));
  EXPECT_FALSE(logged.mfu_percent.has_value());
  EXPECT_FALSE(logged.checkpoint_seconds.has_value());
}

TEST(DecodeRankEventTest, BadMembersDoNotAffectOthers) {
  const auto committed = std::get<core::CheckpointCommitted>(
      decode_rank_event(R"({"kind":"checkpoint_committed","step":"10","full":true,"seconds":null})").value());
  EXPECT_EQ(committed.step, 0);
  EXPECT_TRUE(committed.is_full);
  EXPECT_FALSE(committed.seconds.has_value());
  EXPECT_EQ(std::get<core::StateLoaded>(decode_rank_event(R"({"kind":"loaded","step":1e300})").value()).step, 0);
}

TEST(DecodeRankEventTest, ErrorsBelongToTheSameJobByDefault) {
  const auto error = [](const char* line) { return std::get<core::RankError>(decode_rank_event(line).value()); };
  EXPECT_TRUE(error(R"({"kind":"error","class":"fenced","reason":"STALE_ATTEMPT"})").is_same_job);
  EXPECT_FALSE(error(R"({"kind":"error","same_job":false,"holder_job":"j","holder_attempt":3})").is_same_job);
  EXPECT_EQ(error(R"({"kind":"error","same_job":true,"holder_attempt":3})").holder_attempt, 3);
}

TEST(DecodeRankEventTest, TrainingEndsInTwoWays) {
  EXPECT_TRUE(std::get<core::TrainingEnded>(decode_rank_event(R"({"kind":"stopped","step":7})").value()).is_stopped);
  EXPECT_FALSE(std::get<core::TrainingEnded>(decode_rank_event(R"({"kind":"finished","step":7})").value()).is_stopped);
}

TEST(DecodeRankEventTest, UnknownLinesGiveNoEvent) {
  for (const char* line :
       {"", "[1]", "{", "7", R"({"kind":"phase","phase":"load"})", R"({"step":3})", R"({"kind":3})"}) {
    EXPECT_FALSE(decode_rank_event(line).has_value()) << line;
  }
}

}  // namespace
}  // namespace titan::reconcile
