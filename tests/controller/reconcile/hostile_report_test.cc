// A node of another version or a malicious one may send anything: it is decoded to values that the core can check.

#include <limits>

#include "common/rank_protocol/spool.h"
#include "controller/reconcile/decode_report.h"
#include "gtest/gtest.h"
#include "tests/controller/reconcile/random_message.h"

namespace titan::reconcile {
namespace {

TEST(HostileReportTest, UnknownPhasesAreDecodedAsUnknown) {
  for (const int phase : {0, 6, 99, -1, std::numeric_limits<int>::max()}) {
    v1::WorkerMessage message;
    message.mutable_attempt()->set_phase(static_cast<v1::AttemptReport::Phase>(phase));
    EXPECT_EQ(std::get<core::AttemptReport>(decode(message)).phase, core::PartPhase::kUnknown) << phase;
    v1::Register hello;
    hello.add_inventory()->set_phase(static_cast<v1::AttemptReport::Phase>(phase));
    EXPECT_EQ(decode(hello).inventory.at(0).phase, core::PartPhase::kUnknown) << phase;
  }
}

TEST(HostileReportTest, MissingFieldsTakeDefaults) {
  const core::Registration hello = decode(v1::Register());
  EXPECT_EQ(hello.node, "");
  EXPECT_EQ(hello.devices, 0);
  EXPECT_FALSE(hello.diagnoses);
  EXPECT_TRUE(hello.labels.empty() && hello.inventory.empty());

  v1::WorkerMessage message;
  message.mutable_beat()->add_attempts()->add_ranks();
  const auto beat = std::get<core::Beat>(decode(message));
  EXPECT_EQ(beat.attempts.at(0).attempt, core::AttemptKey("", 0));
  EXPECT_EQ(beat.attempts.at(0).ranks.at(0).rank, 0);
  EXPECT_EQ(beat.unanswered, absl::ZeroDuration());

  message.mutable_attempt()->add_exits();
  const auto report = std::get<core::AttemptReport>(decode(message));
  EXPECT_EQ(report.exits.at(0).exit.kept_log_bytes, 0);
  EXPECT_EQ(report.exits.at(0).log.text, "");

  message.mutable_events()->add_events();
  EXPECT_FALSE(std::get<core::RankEvents>(decode(message)).lines.at(0).event.has_value());

  message.mutable_diagnosis();
  EXPECT_FALSE(std::get<core::Diagnosis>(decode(message)).found.has_value());
  message.mutable_diagnosis()->mutable_rank();
  EXPECT_EQ(std::get<core::Diagnosis>(decode(message)).found->flight.rank, 0);
}

TEST(HostileReportTest, UnrequestedMessagesAreClassified) {
  v1::WorkerMessage message;
  EXPECT_TRUE(std::holds_alternative<core::OtherReport>(decode(message)));
  message.mutable_register_()->set_node("n1");
  EXPECT_TRUE(std::holds_alternative<core::OtherReport>(decode(message)));
  message.mutable_log()->set_data("x");
  EXPECT_TRUE(std::holds_alternative<core::MisdirectedAnswer>(decode(message)));
  message.mutable_trace()->set_data("x");
  EXPECT_TRUE(std::holds_alternative<core::MisdirectedAnswer>(decode(message)));
}

// A kind that only newer workers send is an unknown field here.
TEST(HostileReportTest, MessageKindOfANewerVersionIsIgnored) {
  v1::WorkerMessage message;
  ASSERT_TRUE(message.ParseFromString("\xa2\x06\x03xyz"));  // Field 100.
  EXPECT_TRUE(std::holds_alternative<core::OtherReport>(decode(message)));
}

TEST(HostileReportTest, ADiagnosisIsBounded) {
  constexpr int kGroups = 1024, kCalls = 4096;
  v1::WorkerMessage message;
  v1::RankDiagnosis& rank = *message.mutable_diagnosis()->mutable_rank();
  rank.set_stacks(std::string(rank_protocol::kStacksBytes + 1, 'x'));
  for (int i = 0; i < kGroups + 5; ++i) rank.add_groups();
  for (int i = 0; i < kCalls + 5; ++i) rank.add_calls()->set_sequence(i);
  rank.mutable_calls(kCalls + 2)->set_group(kGroups);  // A group that was not kept.
  rank.mutable_calls(kCalls + 3)->set_group(-1);
  const auto diagnosis = std::get<core::Diagnosis>(decode(message));
  const job::RankFinding& found = *diagnosis.found;
  EXPECT_EQ(found.stacks.size(), rank_protocol::kStacksBytes);
  EXPECT_EQ(found.flight.groups.size(), kGroups);
  ASSERT_EQ(found.flight.calls.size(), kCalls - 2);
  EXPECT_EQ(found.flight.calls.front().sequence, 5) << "the newest calls are kept";
}

// Bytes that can be parsed are decoded, whatever they contain.
TEST(HostileReportTest, DamagedMessagesAreDecoded) {
  int parsed = 0;
  for (int round = 0; round < 2000; ++round) {
    RandomMessage random(round);
    v1::WorkerMessage message;
    switch (round % 4) {
      case 0:
        random.fill(*message.mutable_beat());
        break;
      case 1:
        random.fill(*message.mutable_attempt());
        break;
      case 2:
        random.fill(*message.mutable_events());
        break;
      default:
        random.fill(*message.mutable_diagnosis());
    }
    std::string bytes = message.SerializeAsString();
    bytes[static_cast<size_t>(random.number(0, static_cast<int64_t>(bytes.size()) - 1))] ^=
        static_cast<char>(random.number(1, 255));
    v1::WorkerMessage damaged;
    if (!damaged.ParseFromString(bytes)) continue;
    ++parsed;
    decode(damaged);
  }
  EXPECT_GT(parsed, 200);
}

}  // namespace
}  // namespace titan::reconcile
