// Handling of rank events, including repeated and lost ones.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RankEventsTest : public World, public ::testing::Test {
 protected:
  RankEventsTest() {
    add_node("n1");
    add_node("n2");
  }
  std::vector<std::string> messages(const std::string& id, const std::string& reason) {
    std::vector<std::string> found;
    const auto records = store::scan_all(store, job_events_prefix(job(id)->record->uid));
    for (const auto& record : *records) {
      const auto event = job::decode<job::EventRecord>(record.value);
      if (event->reason == reason) found.push_back(event->message);
    }
    return found;
  }
  void damage(int64_t offset, const std::string& message, int rank = 0) {
    v1::WorkerMessage message_with_damage;
    message_with_damage.mutable_events()->mutable_id()->set_job_uid(key("a").first);
    message_with_damage.mutable_events()->mutable_id()->set_number(key("a").second);
    message_with_damage.mutable_events()->set_rank(rank);
    message_with_damage.mutable_events()->add_damage()->set_offset(offset);
    message_with_damage.mutable_events()->mutable_damage(0)->set_message(message);
    deliver(nodes.at(rank == 0 ? "n1" : "n2"), message_with_damage);
    settle();
  }
};

// Two warnings per step about a full disk must not push out other events.
TEST_F(RankEventsTest, WarningsOfOneKindAreFolded) {
  ASSERT_TRUE(submit(spec("a")).ok());
  for (int step = 1; step <= 1000; ++step) {
    event(nodes.at("n1"), key("a"), 0,
          absl::StrCat(R"({"kind":"warning","message":"metrics.jsonl: step )", step, R"(: No space left on device"})"));
  }
  event(nodes.at("n2"), key("a"), 1, R"({"kind":"warning","message":"another kind"})");
  settle();
  const std::vector<std::string> rank_warnings = messages("a", "RankWarning");
  ASSERT_THAT(rank_warnings, SizeIs(3 + 3 + 1)) << "1, 2, 3, 10, 100, 1000, and the other one";
  EXPECT_EQ(rank_warnings[0], "metrics.jsonl: step 1: No space left on device");
  EXPECT_THAT(rank_warnings[2], HasSubstr("step 3: No space left on device (reported 3 times; from now on"));
  EXPECT_THAT(rank_warnings[5], HasSubstr("step 1000: No space left on device (reported 1000 times)"));
  EXPECT_EQ(rank_warnings[6], "another kind");
}

// The number of kinds is bounded, for each attempt separately.
TEST_F(RankEventsTest, NumberOfWarningKindsIsLimited) {
  ASSERT_TRUE(submit(spec("a")).ok());
  std::string word;
  for (int kind = 0; kind < 400; ++kind) {
    word.push_back(static_cast<char>('a' + kind % 26));
    event(nodes.at("n1"), key("a"), 0, absl::StrCat(R"({"kind":"warning","message":")", word, R"("})"));
  }
  settle();
  EXPECT_LT(messages("a", "RankWarning").size(), 210u);
}

// Progress is updated even if the event itself is dropped.
TEST_F(RankEventsTest, FoldedSaveFailureStillUpdatesTheJob) {
  ASSERT_TRUE(submit(spec("a")).ok());
  for (int step = 1; step <= 5; ++step) {
    event(nodes.at("n1"), key("a"), 0,
          absl::StrCat(R"({"kind":"checkpoint_failed","step":)", step, R"(,"reason":"full"})"));
  }
  settle();
  EXPECT_EQ(job("a")->progress.failed_save, "step 5: full");
  EXPECT_THAT(messages("a", "CheckpointFailed"), SizeIs(3));
}

// Damage gives one event of the job, and later events are still read.
TEST_F(RankEventsTest, ADamagedSpoolIsAnEventOfTheJob) {
  ASSERT_TRUE(submit(spec("a")).ok());
  train("a", 1);
  damage(100, "50 bytes at byte 100 of its event file are not events and were skipped");
  damage(100, "50 bytes at byte 100 of its event file are not events and were skipped");
  EXPECT_THAT(messages("a", "SpoolDamaged"),
              ElementsAre("50 bytes at byte 100 of its event file are not events and were skipped"));
  damage(300, "events 4 to 6 are missing", 1);
  EXPECT_THAT(messages("a", "SpoolDamaged"), SizeIs(2));
  nodes.at("n1").attempts.at(key("a")).sequence[0] += 5;  // A gap.
  event(nodes.at("n1"), key("a"), 0, R"({"kind":"checkpoint_committed","step":7,"full":true,"seconds":0.1})");
  settle();
  EXPECT_EQ(job("a")->progress.committed_step, 7);
  for (int i = 0; i < 50; ++i) damage(1000 + i, "more");
  EXPECT_LE(messages("a", "SpoolDamaged").size(), 20u);
}

// The event of a checkpoint may be among the lost ones: nobody waits for it forever.
TEST_F(RankEventsTest, CheckpointWithALostEventIsNotWaitedFor) {
  ASSERT_TRUE(submit(spec("a")).ok());
  train("a", 1);
  reconciler->checkpoint(job("a")->record->uid, [](const auto&) {});
  settle();
  ASSERT_EQ(state("a"), "CHECKPOINTING");
  damage(5, "more of rank 1", 1);
  EXPECT_EQ(state("a"), "CHECKPOINTING") << "rank 0 reports checkpoints";
  damage(100, "event 3 is missing");
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_THAT(job("a")->progress.failed_save, HasSubstr("not known"));
  event(nodes.at("n1"), key("a"), 0, R"({"kind":"checkpoint_committed","step":1,"full":true,"seconds":0.1})");
  settle();
  EXPECT_EQ(job("a")->progress.failed_save, "") << "the event arrived after all";
}

// An event that arrives after the attempt's end completes that attempt's record.
TEST_F(RankEventsTest, LateEventsCompleteTheRecordOfTheirAttempt) {
  ASSERT_TRUE(submit(spec("a")).ok());
  loaded("a", 50);
  train("a", 60);
  const FakeNode::Key first = key("a");
  exit_rank(nodes.at("n1"), first, 0, 16, 0, "ORPHANED");
  exit_rank(nodes.at("n2"), first, 1, 16, 0);
  settle();
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  send_events(nodes.at("n1"), first, 0, 100, R"({"kind":"stopped","step":101})");
  settle();
  const job::AttemptRecord& ended = *job("a")->attempts[0];
  EXPECT_EQ(ended.resumed_step, 50);
  EXPECT_EQ(ended.last_step, 101);
  EXPECT_EQ(ended.end_cause, "STOPPED");
  EXPECT_THAT(ended.end_message, HasSubstr("node n1 had no contact with a controller for 600 s"));
  crash();
  EXPECT_EQ(job("a")->attempts[0]->last_step, 101);
}

// If a cancel could not save first, its event names the lost steps.
TEST_F(RankEventsTest, CancelWithoutASaveNamesTheLostSteps) {
  ASSERT_TRUE(submit(spec("a")).ok());
  loaded("a", 0);
  train("a", 1);
  event(nodes.at("n1"), key("a"), 0, R"({"kind":"checkpoint_committed","step":1,"full":true,"seconds":0.1})");
  train("a", 126);
  stops_at_once = false;
  ASSERT_TRUE(cancel("a").ok());
  event(nodes.at("n1"), key("a"), 0, R"({"kind":"checkpoint_failed","step":126,"reason":"No space left on device"})");
  exit_rank(nodes.at("n1"), key("a"), 0, 14, 0);
  exit_rank(nodes.at("n2"), key("a"), 1, 14, 0);
  settle();
  ASSERT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(job("a")->attempts[0]->end_message,
            "cancelled; 125 steps after the checkpoint of step 1 are lost: the save failed (step 126: No space left on "
            "device)");
  EXPECT_THAT(messages("a", "JobCancelled"), ElementsAre("at step 126; its newest checkpoint is of step 1"));
}

// If the save succeeded, the event mentions no loss.
TEST_F(RankEventsTest, CancelThatSavedMentionsNoLoss) {
  ASSERT_TRUE(submit(spec("a")).ok());
  train("a", 20);
  ASSERT_TRUE(cancel("a").ok());
  ASSERT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(job("a")->attempts[0]->end_message, "cancelled; the ranks saved first");
}

}  // namespace
}  // namespace titan::reconcile
