#include "controller/job/restart.h"

#include <iterator>
#include <map>
#include <set>

#include "common/rank_protocol/launch.h"
#include "gtest/gtest.h"

namespace titan::job {
namespace {

RankExit exit_of(int rank, int code, int64_t time = 10) {
  return {.rank = rank, .exit_code = code, .time_ns = time, .node = "n" + std::to_string(rank)};
}
RankExit killed(int rank, int signal, int64_t time) {
  return {.rank = rank, .exit_code = -1, .signal = signal, .time_ns = time, .node = "n" + std::to_string(rank)};
}

// The killed rank is the root cause; its peers' failed collectives and the controller's own kills are consequences.
TEST(ClassifyTest, FindsTheKilledRank) {
  EndFacts facts{.exits = {exit_of(0, rank_protocol::kExitPeerLost, 20), killed(1, 9, 10), killed(2, 9, 40)},
                 .num_ranks = 3};
  facts.stop_time_ns = 30;
  const AttemptEnd end = classify(facts);
  EXPECT_EQ(end.cause, Cause::kRankKilled);
  EXPECT_EQ(end.message, "rank 1 on n1 was killed by signal 9");
}

// The exit of the killed rank may be reported after those of its peers, and its time may be after the stop, because
// clocks of nodes differ.
TEST(ClassifyTest, PeerLossIsNotTheRootCause) {
  EndFacts facts{.exits = {exit_of(0, rank_protocol::kExitPeerLost, 20), killed(1, 9, 31)}, .num_ranks = 2};
  facts.stop_time_ns = 30;
  EXPECT_EQ(classify(facts).cause, Cause::kRankKilled);
}

// If two ranks fail alike, the first one reported is the root cause, even if its node's clock is wrong; within one
// report the earlier one.
TEST(ClassifyTest, FirstReportedFailureIsTheCause) {
  RankExit first = exit_of(0, 1, /*time=*/3'600'000);
  RankExit second = exit_of(1, 1, /*time=*/10);
  first.report = 1;
  second.report = 2;
  EXPECT_EQ(classify({.exits = {second, first}, .num_ranks = 2}).node, "n0");
  second.report = 1;
  EXPECT_EQ(classify({.exits = {second, first}, .num_ranks = 2}).node, "n1");
}

// A rank that Titan ended lived until then: its signal does not explain the failure.
TEST(ClassifyTest, RankThatTitanEndedIsNotTheCause) {
  RankExit ended = killed(1, 9, 31);
  ended.stop_reason = "ATTEMPT_FAILED";
  EndFacts facts{.exits = {exit_of(0, rank_protocol::kExitPeerLost, 20), ended}, .stop_time_ns = 30, .num_ranks = 2};
  EXPECT_EQ(classify(facts).cause, Cause::kRankFailed);
  facts.hung = {{1, "n1", "backward", 100.4}};
  const AttemptEnd end = classify(facts);
  EXPECT_EQ(end.cause, Cause::kHang);
  EXPECT_EQ(end.message,
            "rank 1 on n1 in backward made no progress for 100 s; Titan ended it. rank 0 on n0 exited with code 12");
  facts.exits.push_back(exit_of(2, rank_protocol::kExitStorage));
  EXPECT_EQ(classify(facts).cause, Cause::kStorageError) << "a named cause outranks a hang";
}

// The kernel killed the rank while it saved on request; Titan did not.
TEST(ClassifyTest, OutOfMemoryDuringASaveIsTheCause) {
  RankExit full = killed(1, 9, 20);
  full.stop_reason = "DRAINED";
  full.out_of_memory = true;
  const AttemptEnd end = classify({.exits = {exit_of(0, rank_protocol::kExitPeerLost, 21), full}, .num_ranks = 2});
  EXPECT_EQ(end.cause, Cause::kOutOfMemory);
  EXPECT_EQ(end.node, "n1");
}

TEST(ClassifyTest, NewerAttemptOutranksAllCauses) {
  EndFacts facts{.exits = {exit_of(0, rank_protocol::kExitFenced)}, .num_ranks = 2, .newer_attempt = 8};
  EXPECT_EQ(classify(facts).cause, Cause::kStaleAttempt);
}

TEST(ClassifyTest, AUserErrorOutranksALostNode) {
  EndFacts facts{.exits = {exit_of(0, rank_protocol::kExitUserError)}, .num_ranks = 2};
  facts.errors = {{0, "user", "NONFINITE_LOSS", "loss is nan at step 7"}};
  facts.lost_nodes = {"n1"};
  const AttemptEnd end = classify(facts);
  EXPECT_EQ(end.cause, Cause::kUserError);
  EXPECT_EQ(end.reason, "NONFINITE_LOSS");
  EXPECT_EQ(end.message, "rank 0 on n0 exited with code 11: loss is nan at step 7");
}

TEST(ClassifyTest, LostNodeOutranksItsPeersFailures) {
  EndFacts facts{.exits = {exit_of(0, rank_protocol::kExitPeerLost)}, .lost_nodes = {"n1"}, .num_ranks = 2};
  EXPECT_EQ(classify(facts).cause, Cause::kNodeLost);
}

TEST(ClassifyTest, LostShimIsTheCause) {
  EndFacts facts{.exits = {killed(0, 9, 5), exit_of(1, 12)},
                 .refusals = {{"n0", "SHIM_LOST", "its shim is gone"}},
                 .num_ranks = 2};
  EXPECT_EQ(classify(facts).cause, Cause::kShimLost);
}

TEST(ClassifyTest, OutOfMemoryNamesTheLimit) {
  RankExit exit = killed(1, 9, 5);
  exit.out_of_memory = true;
  EXPECT_EQ(classify({.exits = {exit_of(0, 12), exit}, .num_ranks = 2}).cause, Cause::kOutOfMemory);
  exit.memory_limit_bytes = int64_t{3} << 29;
  const std::string message = classify({.exits = {exit}, .num_ranks = 2}).message;
  EXPECT_NE(message.find("ranks to 1.50 GiB in total"), std::string::npos) << message;
}

// A rank without its libraries (the loader's exit code) does not fail by a bug of the rank: the message names what is
// missing, and peers that waited for it are not the root cause.
TEST(ClassifyTest, ARankThatCannotBeLoadedIsALaunchFailure) {
  RankExit exit = exit_of(1, 127, 30);
  exit.message = "titan-rank: error while loading shared libraries: libtorch_cpu.so: cannot open shared object file";
  const AttemptEnd end = classify({.exits = {exit_of(0, rank_protocol::kExitPeerLost, 20), exit}, .num_ranks = 2});
  EXPECT_EQ(end.cause, Cause::kLaunchFailed);
  EXPECT_EQ(end.message, "rank 1 on n1 could not be started: " + exit.message);
  EXPECT_TRUE(end.never_ran);
}

// An exit by Titan explains nothing, and a rank that lost a peer explains less than that peer.
TEST(MostRelevantTest, KeepsTheExitsThatExplainTheEnd) {
  std::map<int, RankExit> exits;
  for (int rank = 0; rank < 300; ++rank) {
    exits[rank] = rank % 2 == 0 ? exit_of(rank, rank_protocol::kExitPeerLost) : killed(rank, 9, 20);
    if (rank % 2 == 1) exits[rank].stop_reason = "ATTEMPT_FAILED";
  }
  exits[299] = exit_of(299, rank_protocol::kExitUserError, /*time=*/1000);
  exits[150] = killed(150, 11, 1000);
  const std::vector<RankExit> kept = most_relevant(exits);
  ASSERT_EQ(kept.size(), kExitsKept);
  std::set<int> ranks;
  int ended_by_titan = 0;
  for (const RankExit& exit : kept) {
    EXPECT_TRUE(ranks.empty() || exit.rank > *ranks.rbegin()) << "by rank";
    ranks.insert(exit.rank);
    ended_by_titan += !exit.stop_reason.empty();
  }
  EXPECT_EQ(ranks.count(299) + ranks.count(150), 2u);
  EXPECT_EQ(ended_by_titan, 256 - 151) << "all that ended by themselves come first";
  exits.erase(exits.begin(), std::next(exits.begin(), 44));
  EXPECT_EQ(most_relevant(exits).size(), 256u) << "up to the limit, all are kept";
}

TEST(ClassifyTest, CleanEnds) {
  EXPECT_EQ(classify({.exits = {exit_of(0, 0), exit_of(1, 0)}, .num_ranks = 2}).cause, Cause::kFinished);
  EXPECT_EQ(classify({.exits = {exit_of(0, 16), exit_of(1, 16)}, .num_ranks = 2}).cause, Cause::kStopped);
  EXPECT_EQ(classify({.exits = {exit_of(0, 16), exit_of(1, 16)}, .cancelled = true, .num_ranks = 2}).cause,
            Cause::kCancelled);
  EXPECT_EQ(classify({.exits = {exit_of(0, 0), exit_of(1, 0)}, .cancelled = true, .num_ranks = 2}).cause,
            Cause::kFinished);
  EXPECT_EQ(classify({.exits = {killed(0, 9, 1)}, .cancelled = true, .num_ranks = 2}).cause, Cause::kCancelled);
}

// The message names who requested that the ranks exit.
TEST(ClassifyTest, StopMessageNamesItsSource) {
  const auto stopped = [](const std::string& reason, const std::map<std::string, std::string>& drained = {}) {
    EndFacts facts{
        .exits = {exit_of(0, 16), exit_of(1, 16)}, .num_ranks = 2, .drained = drained, .orphan_timeout_seconds = 600};
    facts.exits[0].node = "n1";
    facts.exits[1].node = "n2";
    facts.exits[1].stop_reason = reason;
    const AttemptEnd end = classify(facts);
    EXPECT_EQ(end.cause, Cause::kStopped);
    return end.message;
  };
  EXPECT_EQ(stopped("NODE_DRAINED", {{"n2", "user:alice"}}),
            "node n2 was drained by user:alice: the ranks saved and exited");
  EXPECT_EQ(stopped("NODE_DRAINED"), "node n2 was drained: the ranks saved and exited");
  EXPECT_EQ(stopped("ORPHANED"),
            "node n2 had no contact with a controller for 600 s (restart.orphan_timeout_seconds): the ranks saved and "
            "exited");
  EXPECT_EQ(stopped("WORKER_STOPPING"),
            "titan-worker on n2 was stopped (--stop-ranks-on-exit): the ranks saved and exited");
  EXPECT_EQ(stopped("SIGTERM to the shim"),
            "node n2 stopped its ranks (SIGTERM to the shim): the ranks saved and exited");
  EXPECT_EQ(stopped(""), "a rank was asked to stop from outside Titan (SIGTERM): the ranks saved and exited");
  EXPECT_EQ(classify({.exits = {exit_of(0, 16)}, .cancelled = true, .num_ranks = 1, .actor = "user:bob"}).message,
            "cancelled by user:bob; the ranks saved first");
}

TEST(CauseTest, CauseNamesAreRecognized) {
  EXPECT_TRUE(is_cause("RANK_KILLED"));
  EXPECT_TRUE(is_cause("STALE_ATTEMPT"));
  EXPECT_FALSE(is_cause("anything"));
  EXPECT_FALSE(is_cause(""));
}

class DecideTest : public ::testing::Test {
 protected:
  Verdict next(Cause cause, int64_t step = 0, double jitter = 0) {
    return decide(policy_, history_, {cause, "", "why"}, step, jitter);
  }
  RestartPolicy policy_;
  RestartHistory history_;
};

TEST_F(DecideTest, FirstIsImmediateThenBackoffDoubles) {
  policy_.no_progress_limit = 20;
  EXPECT_EQ(next(Cause::kRankKilled).delay_seconds, 0);
  EXPECT_EQ(next(Cause::kRankKilled).delay_seconds, 1);
  EXPECT_EQ(next(Cause::kRankKilled).delay_seconds, 2);
  EXPECT_EQ(next(Cause::kRankKilled, 0, 1).delay_seconds, 5);  // 4 s and a quarter of jitter.
  for (int i = 0; i < 10; ++i) next(Cause::kRankKilled);
  EXPECT_EQ(next(Cause::kRankKilled, 0, 0.5).delay_seconds, 60);
}

TEST_F(DecideTest, ThreeRestartsWithoutProgressFail) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(next(Cause::kRankKilled).restart) << i;
  const Verdict verdict = next(Cause::kRankKilled);
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.failure_reason, "NO_PROGRESS");
}

TEST_F(DecideTest, ProgressResetsTheCounters) {
  for (int kill = 0; kill < 50; ++kill) {
    EXPECT_TRUE(note_progress(history_, kill + 1, 0));
    const Verdict verdict = next(Cause::kRankKilled);
    EXPECT_TRUE(verdict.restart);
    EXPECT_EQ(verdict.delay_seconds, 0);
  }
  EXPECT_FALSE(note_progress(history_, 50, 0));  // Replayed.
  EXPECT_TRUE(note_progress(history_, 50, 50));  // A commit counts too.
}

TEST_F(DecideTest, TheSameUserErrorAtTheSameStepTwiceFails) {
  EXPECT_TRUE(next(Cause::kUserError, 7).restart);
  note_progress(history_, 9, 0);
  EXPECT_TRUE(next(Cause::kUserError, 9).restart);
  const Verdict verdict = next(Cause::kUserError, 9);
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.failure_reason, "USER_ERROR");
  EXPECT_EQ(verdict.failure_message, "why (the same error at step 9 twice)");
}

TEST_F(DecideTest, ModelMismatchIsNotRetried) {
  history_.best_step = 9;
  for (const char* reason : {"MODEL_MISMATCH", "LORA_BASE", "MODEL"}) {
    const Verdict verdict = decide(policy_, history_, {Cause::kUserError, reason, "why"}, 9, 0);
    EXPECT_FALSE(verdict.restart) << reason;
    EXPECT_EQ(verdict.failure_reason, reason);
    EXPECT_EQ(verdict.failure_message, "why");
  }
  // A mount may have returned, and another mesh may suit the batch.
  for (const char* reason : {"CHECKPOINT", "DATA", "BATCH_SIZE", "DATA_CURSOR", "NONFINITE_LOSS", "NO_SUCH_USER"}) {
    history_ = {};
    EXPECT_TRUE(decide(policy_, history_, {Cause::kUserError, reason, "why"}, 9, 0).restart) << reason;
  }
}

// A single attempt proves that an installation is broken; a job that has trained may wait for its repair.
TEST_F(DecideTest, AProgramThatCannotBeLoadedEndsAJobThatNeverRan) {
  const AttemptEnd end{Cause::kLaunchFailed, "", "no libtorch_cpu.so", /*never_ran=*/true};
  const Verdict verdict = decide(policy_, history_, end, 0, 0);
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.failure_reason, "LAUNCH_FAILED");
  EXPECT_EQ(verdict.failure_message, "no libtorch_cpu.so");
  EXPECT_TRUE(next(Cause::kLaunchFailed).restart);  // A node that could not prepare is another case.
  note_progress(history_, 5, 0);
  EXPECT_TRUE(decide(policy_, history_, end, 5, 0).restart);
}

// Waiting for devices is not a failure: it may last forever, with growing delays that progress resets.
TEST_F(DecideTest, TakenDevicesNeverFailAJob) {
  const AttemptEnd end{Cause::kLaunchFailed, "DEVICE_TAKEN", "device 0 is in use"};
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(decide(policy_, history_, end, 0, 0).restart) << i;
  EXPECT_EQ(decide(policy_, history_, end, 0, 0).delay_seconds, policy_.backoff_max_seconds);
  EXPECT_EQ(history_.without_progress, 0);
  note_progress(history_, 1, 0);
  EXPECT_EQ(decide(policy_, history_, end, 1, 0).delay_seconds, 0);
}

// A node that cannot even start ranks does not prove anything about the job: it is retried with growing delays, and the
// job never fails for that.
TEST_F(DecideTest, RefusalsBeforeRanksRanNeverFailAJob) {
  for (const char* reason : {"STATE_FOLDER_UNUSABLE", "PREPARE_TIMEOUT", "LAUNCH_FAILED", "NODE_STOPPING",
                             "NOT_PREPARED", "ADDRESS_IS_LOOPBACK"}) {
    history_ = {};
    EndFacts facts{.refusals = {{"n5", reason, "no space"}}, .num_ranks = 2};
    const AttemptEnd end = classify(facts);
    ASSERT_TRUE(is_refusal_of_node(end)) << reason;
    EXPECT_EQ(decide(policy_, history_, end, 0, 0).delay_seconds, 0) << "another node may start it at once";
    EXPECT_GE(decide(policy_, history_, end, 0, 0).delay_seconds, 4 * policy_.backoff_initial_seconds);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(decide(policy_, history_, end, 0, 0).restart) << reason << i;
    EXPECT_EQ(decide(policy_, history_, end, 0, 0).delay_seconds, policy_.backoff_max_seconds);
    EXPECT_EQ(history_.without_progress, 0);
  }
  for (const char* reason : {"BAD_LAUNCH", "BAD_REQUEST", "RANK_UNKILLABLE", "DUMP_FOLDER_UNUSABLE", "HANG"}) {
    EXPECT_FALSE(is_refusal_of_node(classify({.refusals = {{"n5", reason, "why"}}, .num_ranks = 2}))) << reason;
  }
  // The program of a job that has trained can no longer be loaded: the node's installation is being changed.
  history_ = {};
  note_progress(history_, 5, 0);
  const AttemptEnd not_loaded{Cause::kLaunchFailed, "", "no libtorch_cpu.so", /*never_ran=*/true};
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(decide(policy_, history_, not_loaded, 5, 0).restart) << i;
  EXPECT_EQ(history_.without_progress, 0);
}

// Two controllers with one store would take the folder from each other forever.
TEST_F(DecideTest, StaleAttemptsAreRetriedUpToALimit) {
  for (int i = 0; i < 19; ++i) {
    const Verdict verdict = next(Cause::kStaleAttempt);
    ASSERT_TRUE(verdict.restart) << i;
    ASSERT_EQ(verdict.delay_seconds, 0);
    note_progress(history_, i + 1, 0);
  }
  EXPECT_EQ(history_.without_progress, 0);
  EXPECT_EQ(next(Cause::kStaleAttempt).failure_reason, "STALE_ATTEMPT");
}

TEST_F(DecideTest, ABadConfigurationIsNotRetried) { EXPECT_FALSE(next(Cause::kBadConfig).restart); }

// Two jobs that take one dump folder from each other both commit checkpoints, so NO_PROGRESS would never end them: a
// folder of another job ends the job at once. A newer attempt of the same job is another case.
TEST_F(DecideTest, FolderOfAnotherJobEndsTheJob) {
  EndFacts facts{.exits = {exit_of(0, rank_protocol::kExitFenced), exit_of(1, rank_protocol::kExitPeerLost)},
                 .num_ranks = 2};
  facts.errors = {{0, "fenced", "FENCED", "the dump folder /d was taken over by job b", "b", 1, /*same_job=*/false}};
  AttemptEnd end = classify(facts);
  EXPECT_EQ(end.cause, Cause::kFenced);
  EXPECT_EQ(end.reason, "DUMP_FOLDER_TAKEN");
  Verdict verdict = decide(policy_, history_, end, 0, 0);
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.failure_reason, "DUMP_FOLDER_TAKEN");
  EXPECT_EQ(verdict.failure_message, "rank 0 on n0 exited with code 15: the dump folder /d was taken over by job b");

  facts.errors = {{0, "fenced", "DUMP_FOLDER_IN_USE", "belongs to job b", "b", 1, false}};
  verdict = decide(policy_, history_, classify(facts), 0, 0);
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.failure_reason, "DUMP_FOLDER_IN_USE");

  facts.errors = {{0, "fenced", "FENCED", "belongs to attempt 9", "a", 9, /*same_job=*/true}};
  end = classify(facts);
  EXPECT_EQ(end.reason, "FENCED");
  EXPECT_TRUE(decide(policy_, history_, end, 0, 0).restart);
}

// A leader with a stale mount makes others refuse, and a node that refuses may have one itself. Other pairs are tried
// while there are any; if two pairs without a common node fail, no node is the cause.
TEST_F(DecideTest, SharedFolderIsTriedOnOtherNodes) {
  const auto ends_at = [](const std::string& leader, const std::string& follower, bool elsewhere) {
    AttemptEnd end = classify({.refusals = {{follower, "DUMP_FOLDER_NOT_SHARED", "no token"}},
                               .num_ranks = 2,
                               .leader = leader,
                               .elsewhere = elsewhere});
    EXPECT_EQ(end.at_odds, (std::vector<std::string>{leader, follower}));
    return end;
  };
  RestartHistory alone = history_, apart = history_;
  EXPECT_TRUE(decide(policy_, history_, ends_at("n1", "n2", true), 0, 0).restart);
  EXPECT_TRUE(decide(policy_, history_, ends_at("n1", "n3", true), 0, 0).restart);
  EXPECT_TRUE(decide(policy_, history_, ends_at("n2", "n3", true), 0, 0).restart);
  EXPECT_EQ(decide(policy_, history_, ends_at("n2", "n3", true), 0, 0).failure_reason, "NO_PROGRESS") << "bounded";

  EXPECT_TRUE(decide(policy_, alone, ends_at("n1", "n2", false), 0, 0).restart);
  EXPECT_EQ(decide(policy_, alone, ends_at("n1", "n2", false), 0, 0).failure_reason, "DUMP_FOLDER_NOT_SHARED");

  EXPECT_TRUE(decide(policy_, apart, ends_at("n1", "n2", true), 0, 0).restart);
  EXPECT_EQ(decide(policy_, apart, ends_at("n3", "n4", true), 0, 0).failure_reason, "DUMP_FOLDER_NOT_SHARED");
}

// The job's specification is in one record: without it the job cannot be started again.
TEST_F(DecideTest, LostSpecificationEndsTheJob) {
  EndFacts facts{.refusals = {{"", "SPEC_UNREADABLE", "record 'spec/a' is set aside"}}, .num_ranks = 1};
  const Verdict verdict = decide(policy_, history_, classify(facts), 0, 0);
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.failure_reason, "SPEC_UNREADABLE");
  facts.refusals.front().reason = "SPEC_NOT_READ";  // The disk failed to answer this time only.
  EXPECT_TRUE(decide(policy_, history_, classify(facts), 0, 0).restart);
}

// One node may lack a mount: the job is retried and the node is named; after the second time the user has to repair it.
TEST_F(DecideTest, LostFolderIsRetriedOnce) {
  EndFacts facts{.refusals = {{"n1", "CHECKPOINTS_GONE", "no folder"}}, .num_ranks = 1};
  const AttemptEnd end = classify(facts);
  EXPECT_EQ(end.cause, Cause::kUserError);
  EXPECT_EQ(end.node, "n1");
  EXPECT_TRUE(is_lost_folder(end));
  EXPECT_TRUE(decide(policy_, history_, end, 200, 0).restart);
  const Verdict verdict = decide(policy_, history_, end, 200, 0);
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.failure_reason, "CHECKPOINTS_GONE");
}

}  // namespace
}  // namespace titan::job
