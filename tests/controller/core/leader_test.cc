// Nodes inform a controller that does not know yet that another one leads.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class LeaderTest : public ::testing::Test, protected World {
 protected:
  void SetUp() override {
    leader_epoch = 4;
    crash();
    add_node("n1");
    ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
    train("a", 1);
    ASSERT_EQ(state("a"), "RUNNING");
  }
  v1::WorkerMessage stale(int64_t epoch) {
    FakeNode& node = nodes.at("n1");
    v1::WorkerMessage stale_report = report(key("a"), node.attempts.at(key("a")));
    stale_report.mutable_attempt()->set_phase(v1::AttemptReport::REFUSED);
    stale_report.mutable_attempt()->set_error_reason("STALE_LEADER");
    stale_report.mutable_attempt()->set_leader_epoch(epoch);
    return stale_report;
  }
};

TEST_F(LeaderTest, NodeThatFollowsALaterLeaderSupersedesThisOne) {
  deliver(nodes.at("n1"), stale(5));
  settle();
  ASSERT_EQ(superseded.size(), 1u);
  EXPECT_EQ(superseded[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(superseded[0].message()), ::testing::HasSubstr("node n1 follows a leader with epoch 5"));
  EXPECT_EQ(state("a"), "RUNNING") << "a refused command says nothing about the attempt";
  v1::Register hello = hello_of(nodes.at("n1"));
  hello.set_leader_epoch(6);
  EXPECT_TRUE(reconciler->open_session(hello, std::make_shared<FakeSession>()).ok());
  EXPECT_EQ(superseded.size(), 2u);
}

// A node that is silent here may follow another controller: the survivors keep training until a write proves that this
// controller leads. A rank's own exit needs no such proof.
TEST_F(LeaderTest, SurvivorsAreStoppedOnceTheLossIsDurable) {
  for (const bool is_silent : {true, false}) {
    add_node("n2");
    add_node("n3");
    const std::string id = is_silent ? "b" : "c";
    ASSERT_TRUE(submit(spec(id, 2)).ok());
    train(id, 1);
    FakeNode &survivor = nodes.at("n2"), &other = nodes.at("n3");
    ASSERT_EQ(survivor.attempts.count(key(id)), 1u);
    const auto stops = [&] {
      return survivor.count(v1::ControllerMessage::kStop) +
             std::count_if(survivor.session->inbox.begin(), survivor.session->inbox.end(),
                           [](const v1::ControllerMessage& message) { return message.has_stop(); });
    };
    if (is_silent) {
      destroy(other);
      for (int i = 0; i < 40; ++i) {
        clock.advance(absl::Milliseconds(500));
        for (const char* node : {"n1", "n2"}) beat(nodes.at(node));
        reconciler->tick();
      }
    } else {
      exit_rank(other, key(id), 1, 1, 0);
    }
    EXPECT_EQ(stops(), is_silent ? 0 : 1);
    connect(survivor);
    settle();
    EXPECT_GE(stops(), 1);
    EXPECT_EQ(count_events(id, "NodeLost"), is_silent ? 1 : 0);
    for (const char* node : {"n2", "n3"}) {
      destroy(nodes.at(node));
      nodes.erase(node);
    }
    ASSERT_TRUE(cancel(id, /*now=*/true).ok());
  }
}

TEST_F(LeaderTest, OwnAndEarlierEpochsAreIgnored) {
  for (const int64_t epoch : {0, 3, 4}) deliver(nodes.at("n1"), stale(epoch));
  EXPECT_TRUE(superseded.empty());
}

}  // namespace
}  // namespace titan::reconcile
