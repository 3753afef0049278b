#include "controller/core/node_table.h"

#include "common/service/rpc/error.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

class NodesTest : public ::testing::Test {
 protected:
  absl::StatusOr<NodeTable::Opened> open(double at, const std::string& instance = "i", const std::string& boot = "",
                                         int64_t after_boot = 0) {
    Registration hello;
    hello.node = "n1";
    hello.instance = instance;
    hello.boot_id = boot;
    hello.boot_nanoseconds = after_boot;
    hello.devices = 2;
    return nodes_.open_session(hello, ++session_, absl::Seconds(at), absl::UnixEpoch());
  }
  NodeTable nodes_{absl::Seconds(5), absl::Seconds(1)};
  SessionId session_ = 0;
};

TEST_F(NodesTest, SuspectAtThreeBeatsLostAtTheLease) {
  Node& node = *open(0)->node;
  node.state = NodeState::kReady;
  nodes_.mark_suspects(absl::Seconds(3));
  EXPECT_TRUE(node.can_take_ranks());
  nodes_.mark_suspects(absl::Seconds(3.1));
  EXPECT_FALSE(node.can_take_ranks());
  EXPECT_FALSE(nodes_.lease_over(node, absl::Seconds(5)));
  EXPECT_TRUE(nodes_.lease_over(node, absl::Seconds(5.1)));
  nodes_.beat(node, absl::Seconds(6), absl::UnixEpoch());
  EXPECT_TRUE(node.can_take_ranks());
  EXPECT_FALSE(nodes_.lease_over(node, absl::Seconds(6)));
}

// A node whose stream breaks gets no new ranks at once, but is lost only when its lease ends.
TEST_F(NodesTest, BrokenStreamMakesANodeSuspect) {
  Node& node = *open(0)->node;
  node.state = NodeState::kReady;
  nodes_.close_session("n1", session_);
  EXPECT_FALSE(node.can_take_ranks());
  EXPECT_FALSE(nodes_.lease_over(node, absl::Seconds(1)));
}

TEST_F(NodesTest, EpochsGrowAndOnlyTheNewestSessionCounts) {
  EXPECT_EQ(open(0)->node->record.lease_epoch, 1);
  const SessionId first = session_;
  const absl::StatusOr<NodeTable::Opened> second = open(1);
  EXPECT_EQ(second->node->record.lease_epoch, 2);
  EXPECT_EQ(second->replaced, first);
  EXPECT_EQ(nodes_.owner("n1", first), nullptr);
  EXPECT_NE(nodes_.owner("n1", session_), nullptr);
  nodes_.close_session("n1", first);
  EXPECT_EQ(nodes_.find("n1")->session, session_);
  EXPECT_EQ(nodes_.owner("n1", 0), nullptr) << "0 is not a session";
}

// The registration of an abandoned session may arrive after that of the next one, with outdated contents. A rebooted
// machine counts from zero, and workers of older versions send no time.
TEST_F(NodesTest, NewestSessionWinsRegardlessOfArrivalOrder) {
  ASSERT_TRUE(open(0, "i", "boot1", 1000).ok());
  ASSERT_TRUE(open(1, "i", "boot1", 3000).ok());
  const SessionId newest = session_;
  const absl::Status late = open(2, "i", "boot1", 2000).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::reason(late), kSessionReplaced);
  EXPECT_EQ(nodes_.find("n1")->session, newest);
  EXPECT_EQ(nodes_.find("n1")->record.lease_epoch, 2);
  nodes_.close_session("n1", newest);
  EXPECT_FALSE(open(2, "i", "boot1", 2500).ok()) << "even if the later session is over";
  EXPECT_TRUE(open(2, "i", "boot1", 3500).ok());
  EXPECT_TRUE(open(3, "i", "boot2", 10).ok());
  EXPECT_TRUE(open(4).ok());
  EXPECT_TRUE(open(5, "i", "boot1", 1).ok());
}

TEST_F(NodesTest, AnotherStateFolderMayTakeTheIdOnceTheFirstIsSilent) {
  ASSERT_TRUE(open(0).ok());
  EXPECT_EQ(open(3, "other").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(open(9, "other").ok());
}

// A broken stream or a restarted controller does not let in a second daemon that keeps trying.
TEST_F(NodesTest, IdBelongsToItsStateFolderForOneLease) {
  ASSERT_TRUE(open(0).ok());
  nodes_.close_session("n1", session_);
  EXPECT_EQ(open(3, "other").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(open(4).ok());

  job::NodeRecord stored;
  stored.name = "n2";
  stored.instance = "i";
  nodes_.restore(stored, absl::Seconds(10));
  Registration hello;
  hello.node = "n2";
  hello.instance = "other";
  EXPECT_EQ(nodes_.open_session(hello, session_, absl::Seconds(11), absl::UnixEpoch()).status().code(),
            absl::StatusCode::kAlreadyExists);
  hello.instance = "i";
  EXPECT_TRUE(nodes_.open_session(hello, session_, absl::Seconds(11), absl::UnixEpoch()).ok());
}

}  // namespace
}  // namespace titan::core
