// Sessions that are lost or replaced, or belong to another cluster or an earlier leader.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/core/node_world.h"

namespace titan::node {
namespace {

using ::testing::HasSubstr;
using Report = v1::AttemptReport;

// The session is lost after every single item, and the next one gets everything that it needs.
TEST(SessionTest, MayBeLostAndReplacedAtEveryStep) {
  for (const bool gap : {false, true}) {  // Whether items run while there is no session.
    for (int steps = 0; steps < 60; ++steps) {
      NodeWorld world;
      world.connect();
      int left = steps;
      const auto settle = [&] {
        while (left > 0 && world.run_one()) --left;
        if (left > 0) return;
        if (left-- == 0) {
          world.disconnect();
          if (gap) world.settle();
          world.connect();
        }
        world.settle();
      };
      // A controller repeats commands without an answer.
      const auto prepared = [&] { return world.last(1).phase() == Report::PREPARED; };
      world.prepare(1);
      settle();
      if (!prepared()) world.prepare(1);
      settle();
      ASSERT_TRUE(prepared()) << steps;
      world.start(1);
      settle();
      if (world.last(1).phase() != Report::STARTED) world.start(1);
      settle();
      ASSERT_EQ(world.last(1).phase(), Report::STARTED) << steps;
      ASSERT_EQ(world.running_ranks(1), 2) << steps;
      for (const int rank : {0, 1}) {
        world.rank_emits(1, rank, 5);
        settle();
        world.rank_exits(1, rank, rank);
        settle();
      }
      settle();
      const Report last = world.last(1);
      EXPECT_EQ(last.phase(), Report::ENDED) << steps;
      ASSERT_EQ(last.exits_size(), 2) << steps;
      EXPECT_EQ(last.exits(1).exit_code(), 1) << steps;
      for (const int rank : {0, 1}) EXPECT_EQ(world.events_of(1, rank), 5) << steps;
      EXPECT_EQ(world.gaps(), 0) << steps;
      EXPECT_EQ(world.count<SpawnShim>(), 1) << steps;
      world.forget(1);
      settle();
      world.forget(1);
      settle();
      EXPECT_TRUE(world.core().state().attempts.empty()) << steps;
    }
  }
}

TEST(SessionTest, EventsAreResentUntilAcknowledged) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.acknowledge = false;
  world.rank_emits(1, 0, 4);
  world.settle();
  EXPECT_EQ(world.events_of(1, 0), 4);
  EXPECT_EQ(world.count<WritePlaces>(), 0);
  const int64_t before = world.core().state().events;
  world.acknowledge = true;
  world.connect();
  EXPECT_EQ(world.core().state().events, before + 4);
  EXPECT_EQ(world.disk.places.at({"u1", 1}).at(0).sequence, 4);
  world.connect();
  EXPECT_EQ(world.core().state().events, before + 4) << "acknowledged events are not sent again";
}

// A read that was in progress when the session ended is repeated for the next one, and is not damage.
TEST(SessionTest, ReadForAnEndedSessionIsNotSent) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.acknowledge = false;
  world.rank_emits(1, 0, 3);
  world.settle();
  world.hang<ReadSpool>();
  world.rank_emits(1, 0, 2);
  world.settle();
  world.acknowledge = true;
  world.connect();
  world.release<ReadSpool>();
  world.settle();
  EXPECT_EQ(world.events_of(1, 0), 5);
  EXPECT_EQ(world.gaps(), 0);
  for (const std::string& line : world.log) EXPECT_EQ(line.find("SpoolDamaged"), std::string::npos) << line;
}

// Answers for an earlier session are not sent on the present one, and its commands are ignored.
TEST(SessionTest, NothingOutlivesItsSession) {
  NodeWorld world;
  world.connect();
  world.connect();
  const Input late = Command{1, NodeWorld::make_prepare(1, 1)};
  world.feed(late);
  world.settle();
  EXPECT_TRUE(world.core().state().attempts.empty());
  world.feed(Disconnected{1, "LATE"});
  EXPECT_TRUE(world.core().state().connected);
  for (const Effect& effect : world.core().step(Command{2, NodeWorld::make_prepare(0, 1)}, world.now())) {
    if (const Send* send = std::get_if<Send>(&effect)) {
      EXPECT_EQ(send->session, 2);
    }
  }
  world.feed(Disconnected{2, ""});
  EXPECT_TRUE(world.core().step(Command{2, NodeWorld::make_prepare(0, 1)}, world.now()).empty());
}

// A controller may send requests as soon as a node has registered: they wait for the welcome, which names the
// controller's cluster.
TEST(SessionTest, RequestsBeforeTheWelcomeWaitForIt) {
  for (const std::string cluster : {"c1", "c2"}) {
    NodeWorld world;
    world.connect("c1");
    world.launch(1, 1);
    v1::ControllerMessage read;
    read.mutable_read_log()->mutable_id()->set_job_uid("u1");
    read.mutable_read_log()->mutable_id()->set_number(1);
    world.feed(Command{2, read});
    EXPECT_FALSE(world.core().state().connected) << "the earlier session is over";
    EXPECT_TRUE(world.logs.empty());
    world.connect(cluster);
    EXPECT_EQ(world.logs.size(), cluster == "c1" ? 1u : 0u);
    world.connect("c1");
    EXPECT_EQ(world.logs.size(), cluster == "c1" ? 1u : 0u) << "an answer for an ended session is dropped";
  }
}

TEST(SessionTest, AControllerOfAnotherClusterIsNotFollowed) {
  NodeWorld world;
  world.connect("c1");
  EXPECT_EQ(world.registered().cluster(), "") << "it joins the first cluster that it reaches";
  EXPECT_EQ(world.disk.cluster, "c1");
  world.launch(1, 1);
  world.connect("c2");
  EXPECT_EQ(world.registered().cluster(), "c1");
  ASSERT_EQ(world.resets.size(), 1u);
  EXPECT_THAT(world.resets[0], HasSubstr("belongs to cluster c2 and this worker to c1"));
  world.feed(Command{2, [] {
                       v1::ControllerMessage stop;
                       stop.mutable_stop()->mutable_id()->set_job_uid("u1");
                       stop.mutable_stop()->mutable_id()->set_number(1);
                       return stop;
                     }()});
  world.settle();
  EXPECT_EQ(world.running_ranks(1), 1);
  EXPECT_FALSE(world.core().state().connected);
  world.connect("c1");
  EXPECT_TRUE(world.core().state().connected);
}

// Two clusters meet a new worker at the same time: it joins the one that it recorded first.
TEST(SessionTest, JoinsTheFirstRecordedCluster) {
  NodeWorld world;
  world.hang<WriteCluster>();
  world.connect("c1");
  EXPECT_FALSE(world.core().state().connected);
  world.prepare(1);
  world.settle();
  world.disconnect();
  world.connect("c2");
  EXPECT_EQ(world.resets.size(), 1u);
  world.connect("c1");
  world.prepare(2);
  world.settle();
  world.release<WriteCluster>();
  world.settle();
  EXPECT_TRUE(world.core().state().connected);
  EXPECT_EQ(world.disk.cluster, "c1");
  EXPECT_EQ(world.count<WriteCluster>(), 1);
  EXPECT_EQ(world.last(1).phase(), Report::PHASE_UNSPECIFIED) << "for a session that has ended";
  EXPECT_EQ(world.last(2).phase(), Report::PREPARED) << "executed once the id is recorded";
}

TEST(SessionTest, AnotherClusterIsAdoptedOnRequestAndOnce) {
  NodeWorld before;
  before.connect("c1");
  NodeConfig config = NodeWorld::default_config();
  config.adopt_cluster = true;
  NodeWorld world(config);
  world.disk.cluster = "c1";
  world.restart();
  world.connect("c2");
  EXPECT_EQ(world.registered().cluster(), "");
  EXPECT_TRUE(world.core().state().connected);
  EXPECT_EQ(world.disk.cluster, "c2");
  world.connect("c1");
  EXPECT_EQ(world.resets.size(), 1u);
  EXPECT_EQ(world.registered().cluster(), "c2");
}

TEST(SessionTest, ClusterThatCannotBeRecordedIsNotFollowed) {
  NodeWorld world;
  world.fail<WriteCluster>("disk full");
  world.connect("c1");
  ASSERT_EQ(world.resets.size(), 1u);
  EXPECT_THAT(world.resets[0], HasSubstr("disk full"));
  EXPECT_FALSE(world.core().state().connected);
  world.clear_failure<WriteCluster>();
  world.connect("c1");
  EXPECT_TRUE(world.core().state().connected);
}

// An earlier leader gets an error, and its commands have no effect.
TEST(SessionTest, CommandsOfAnOldLeaderAreNotObeyed) {
  NodeWorld world;
  world.connect("c1", 5);
  world.launch(1, 1);
  EXPECT_EQ(world.disk.epoch, 5);
  EXPECT_EQ(world.last(1).leader_epoch(), 5);
  world.epoch = 4;
  world.stop(1);
  world.prepare(2, 1);
  world.settle();
  EXPECT_EQ(world.running_ranks(1), 1);
  EXPECT_EQ(world.last(1).error_reason(), "STALE_LEADER");
  EXPECT_EQ(world.last(1).phase(), Report::STARTED);
  EXPECT_EQ(world.last(2).error_reason(), "STALE_LEADER");
  EXPECT_EQ(world.last(2).phase(), Report::REFUSED);
  world.connect("c1", 4);
  EXPECT_FALSE(world.core().state().connected) << "its session is not accepted either";
  // The next daemon remembers the epoch.
  world.restart();
  world.connect("c1", 4);
  EXPECT_EQ(world.registered().leader_epoch(), 5);
  EXPECT_FALSE(world.core().state().connected);
  world.connect("c1", 6);
  world.stop(1);
  world.settle();
  EXPECT_EQ(world.last(1).phase(), Report::ENDED);
  EXPECT_EQ(world.disk.epoch, 6);
}

// A leader whose epoch cannot be recorded starts nothing, but can stop attempts.
TEST(SessionTest, AnEpochThatIsNotDurableStartsNothing) {
  for (const bool hangs : {false, true}) {
    NodeWorld world;
    world.connect("c1", 1);
    world.launch(1, 1);
    if (hangs) {
      world.hang<WriteLeaderEpoch>();
    } else {
      world.fail<WriteLeaderEpoch>("disk full");
    }
    world.connect("c1", 2);
    world.prepare(2, 1);
    world.settle();
    world.advance(kWriteTimeout + absl::Seconds(1));
    EXPECT_EQ(world.last(2).phase(), Report::REFUSED) << hangs;
    EXPECT_EQ(world.last(2).error_reason(), "STATE_FOLDER_UNUSABLE") << hangs;
    world.prepare(1, 1);  // The controller's store lacks the start.
    world.settle();
    world.advance(kWriteTimeout + absl::Seconds(1));
    EXPECT_EQ(world.last(1).phase(), Report::STARTED) << hangs << ": a running attempt is not refused";
    world.stop(1);
    world.settle();
    world.advance(2 * kWriteTimeout + absl::Seconds(1));  // For the epoch, then for the record of the end.
    EXPECT_EQ(world.last(1).phase(), Report::ENDED) << hangs;
    EXPECT_TRUE(world.core().state().connected) << "beats are answered all the while";
  }
}

TEST(SessionTest, BeatReportsTheControllersSilence) {
  NodeWorld world;
  world.connect();
  world.advance(absl::Seconds(10));
  EXPECT_LE(world.last_beat().unanswered_milliseconds(), 1000);
  world.answer_beats = false;
  world.advance(absl::Seconds(2));
  EXPECT_GE(world.last_beat().unanswered_milliseconds(), 1900);
  EXPECT_LE(world.last_beat().unanswered_milliseconds(), 3000);
  world.move_clock(absl::Milliseconds(2500));
  world.tick();  // After a pause of the worker, answers may still wait to be read.
  world.settle();
  EXPECT_EQ(world.last_beat().unanswered_milliseconds(), 0);
}

TEST(SessionTest, ShortLeaseRaisesTheBeatRateUpToALimit) {
  for (const auto& [lease, max_rate] :
       {std::pair(int64_t{1}, absl::Seconds(1) / kMinBeatInterval), {200, 25}, {5000, 1}}) {
    NodeWorld world;
    world.connect();
    v1::ControllerMessage message;
    message.mutable_welcome()->set_cluster("c1");
    message.mutable_welcome()->set_lease_milliseconds(lease);
    world.command(message);
    world.advance(absl::Seconds(2));  // The next beat may be due in a second.
    const int64_t before = world.beats();
    world.advance(absl::Seconds(10));
    EXPECT_NEAR(world.beats() - before, 10 * max_rate, 1) << "a lease of " << lease << " ms";
  }
}

TEST(SessionTest, ReconnectsToSilentControllerAndNotifiesShims) {
  NodeWorld world;
  world.connect();
  world.launch(1, 1);
  world.advance(absl::Seconds(10));
  EXPECT_TRUE(world.resets.empty());
  EXPECT_GE(world.beats(), 9);
  world.answer_beats = false;
  world.advance(absl::Seconds(7));
  ASSERT_EQ(world.resets.size(), 1u);
  EXPECT_THAT(world.resets[0], HasSubstr("no answer to beats for"));
  EXPECT_FALSE(world.core().state().connected);
  const int leases = world.count<SendToShim>();
  world.advance(absl::Seconds(3));
  EXPECT_EQ(world.count<SendToShim>(), leases + 3) << "the shims' leases depend on the controller's messages, "
                                                      "so they must know how long it was silent";
}

}  // namespace
}  // namespace titan::node
