#include "controller/job/record.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace titan::job {
namespace {

TEST(RecordTest, JobRoundTrips) {
  JobRecord record;
  record.uid = "u1";
  record.name = "projects/default/jobs/a";
  record.order = 7;
  record.fingerprint = 4000000000u;
  record.state = JobState::kRecovering;
  record.spec.dump_folder = "/data/a";
  record.spec.ranks = 4;
  record.spec.restart.stop_grace_seconds = 2.5;
  record.history.best_step = 12;
  record.history.user_error = "NONFINITE_LOSS";
  const absl::StatusOr<JobRecord> back = decode<JobRecord>(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(encode(*back), encode(record));
  EXPECT_EQ(back->state, JobState::kRecovering);
  EXPECT_EQ(back->spec.restart.stop_grace_seconds, 2.5);
}

TEST(RecordTest, TombstoneRoundTrips) {
  const Tombstone written{"projects/default/jobs/b", "user:\"x\"", 7, "r1", 4000000000u};
  EXPECT_EQ(encode(*decode<Tombstone>(encode(written))), encode(written));
  for (const char* text : {"{", "", "projects/default/jobs/a"}) {
    EXPECT_EQ(decode<Tombstone>(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

JobRecord full_record() {
  JobRecord record;
  record.uid = "u1";
  record.name = "projects/default/jobs/a";
  record.order = int64_t{1} << 40;
  record.fingerprint = 4000000000u;
  record.state = JobState::kCancelled;
  record.intent = {true, false, "CANCELLED", "alice", -7, 9, {"r1", "r2"}};
  record.spec.dump_folder = "/data/a";
  record.spec.mesh = {{"dp_shard", 2}, {"tp", 4}};
  record.spec.restart.backoff_max_seconds = 1e300;
  record.spec.restart.stop_grace_seconds = 0.1;
  record.avoided_nodes = {"n1", "n2"};
  record.reserved = {{"n3", 8}};
  record.labels = {{"team", "x"}};
  return record;
}

// Where the quick reader succeeds, it gives the same record as the general one, and it reads everything that encode()
// writes.
TEST(RecordTest, QuickReaderReadsEncodedRecords) {
  const std::string text = encode(full_record());
  JobRecord quick;
  ASSERT_TRUE(read_quickly(text, quick)) << text;
  EXPECT_EQ(encode(quick), text);
  AttemptRecord attempt;
  attempt.number = 3;
  attempt.placements = {{"a", 0, 2, {3, 1}}, {"b", 2, 1, {}}};
  attempt.exits = {{.rank = 1,
                    .exit_code = -1,
                    .signal = 9,
                    .out_of_memory = true,
                    .time_ns = 5,
                    .message = "killed",
                    .node = "a",
                    .report = 2}};
  attempt.phase_seconds = {{"place", 0.25}, {"load", 1e-9}};
  attempt.ranks = 3;
  AttemptRecord quick_attempt;
  ASSERT_TRUE(read_quickly(encode(attempt), quick_attempt));
  EXPECT_EQ(encode(quick_attempt), encode(attempt));
  EventRecord event, quick_event;
  event.reason = "JobQueued";
  ASSERT_TRUE(read_quickly(encode(event), quick_event));
  EXPECT_EQ(encode(quick_event), encode(event));
}

// Stores of version 0.1 have this form. The process id and its start time are not stored.
TEST(RecordTest, StoredFormOfARankExitIsStable) {
  const RankExit exit{.rank = 1,
                      .exit_code = -1,
                      .signal = 9,
                      .out_of_memory = true,
                      .memory_limit_bytes = 7,
                      .time_ns = 5,
                      .message = "killed",
                      .stop_reason = "ORPHANED",
                      .pid = 42,
                      .start_ticks = 43,
                      .node = "a",
                      .report = 2,
                      .kept_log_bytes = 6};
  const std::string text =
      R"({"exit_code":-1,"kept_log_bytes":6,"memory_limit_bytes":7,"message":"killed","node":"a","out_of_memory":true,)"
      R"("rank":1,"report":2,"signal":9,"stop_reason":"ORPHANED","time_ns":5})";
  EXPECT_EQ(encode(exit), text);
  EXPECT_EQ(encode(*decode<RankExit>(text)), text);
  EXPECT_EQ(decode<RankExit>("{}")->exit_code, 0);
}

// For a text that is cut anywhere or has one changed byte, decode() gives the same as the general reader: the record or
// an error.
TEST(RecordTest, QuickReaderAgreesWithTheGeneralOne) {
  const std::string text = encode(full_record());
  const auto same = [](const std::string& changed) {
    JobRecord quick;
    if (!read_quickly(changed, quick)) return true;
    const nlohmann::json json = nlohmann::json::parse(changed, nullptr, /*allow_exceptions=*/false);
    return !json.is_discarded() && encode(json.get<JobRecord>()) == encode(quick);
  };
  for (size_t i = 0; i < text.size(); ++i) {
    ASSERT_TRUE(same(text.substr(0, i))) << i;
    for (const char byte : std::string("\"\\0-+.e{}[],:ntx \x01\xff")) {
      std::string changed = text;
      changed[i] = byte;
      ASSERT_TRUE(same(changed)) << changed;
      ASSERT_TRUE(same(text.substr(0, i) + byte + text.substr(i))) << text.substr(0, i) << " + " << byte;
    }
  }
  for (const char* text :
       {R"({"order":01})", R"({"order":1.5})", R"({"order":1e3})", R"({"order":99999999999999999999})",
        R"({"order":null})", R"({"later":1})", R"({"name":"\u00e9"})", R"({"state":"NONE"})", R"({"order":1} )",
        R"({"order":1,})", R"({"intent":{"stop":1}})", ""}) {
    JobRecord record;
    EXPECT_FALSE(read_quickly(std::string(text), record)) << text;
  }
}

// Members may be added: older records lack them and must load with their defaults.
TEST(RecordTest, MissingMembersTakeDefaults) {
  const absl::StatusOr<AttemptRecord> attempt = decode<AttemptRecord>(R"({"number":3,"placements":[{"node":"a"}]})");
  ASSERT_TRUE(attempt.ok()) << attempt.status();
  EXPECT_EQ(attempt->number, 3);
  EXPECT_EQ(attempt->placements[0].num_ranks, 0);
  const absl::StatusOr<NodeRecord> node = decode<NodeRecord>(R"({"name":"n1","device":"cuda","devices":8})");
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->devices, 8);
  EXPECT_EQ(node->device_memory_bytes, 0) << "not known";
  EXPECT_EQ(node->drain.time_ns, 0);
  const absl::StatusOr<JobRecord> stopped = decode<JobRecord>(R"({"name":"a","intent":{"stop":true,"save":false}})");
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->intent.deadline_ns, 0) << "not known";
}

TEST(RecordTest, AttemptRoundTrips) {
  AttemptRecord record;
  record.number = 2;
  record.placements = {{"a", 0, 2, {3, 1}}};
  record.ranks = 2;
  record.mesh = {{"tp", 2}};
  record.config_version = 4;
  const absl::StatusOr<AttemptRecord> back = decode<AttemptRecord>(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(encode(*back), encode(record));
  EXPECT_EQ(back->placements[0].devices, (std::vector<int>{3, 1}));
}

// Records of other versions may have members that this version does not know.
TEST(RecordTest, UnknownMembersAreSkipped) {
  const absl::StatusOr<JobRecord> job = decode<JobRecord>(R"({"name":"a","spec":{"memory_at_least":7,"ranks":2}})");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.ranks, 2);
}

TEST(RecordTest, NodeRoundTrips) {
  NodeRecord record;
  record.name = "n1";
  record.device_memory_bytes = int64_t{80} << 30;
  record.drain = {"bob", 7, "new disk"};
  const absl::StatusOr<NodeRecord> back = decode<NodeRecord>(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(encode(*back), encode(record));
  EXPECT_EQ(back->device_memory_bytes, int64_t{80} << 30);
}

TEST(RecordTest, NonFiniteProgressSurvives) {
  Progress progress;
  progress.loss = std::numeric_limits<double>::quiet_NaN();
  progress.grad_norm = 1.5;
  progress.expert_max_over_mean = 3;
  const absl::StatusOr<Progress> back = decode<Progress>(encode(progress));
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(std::isnan(back->loss));
  EXPECT_EQ(back->grad_norm, 1.5);
  EXPECT_EQ(back->expert_max_over_mean, 3);
}

TEST(RecordTest, InvalidUtf8CanBeEncoded) {
  EventRecord event;
  event.message = "bad \xff byte";
  EXPECT_TRUE(decode<EventRecord>(encode(event)).ok());
}

TEST(RecordTest, DamageIsDataLoss) {
  EXPECT_EQ(decode<JobRecord>("{").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decode<JobRecord>(R"({"state":"SLEEPING"})").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::job
