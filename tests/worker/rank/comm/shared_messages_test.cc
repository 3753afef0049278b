// Tests messages through memory that two ranks share: their content; the orders in which they may be received and
// waited for; both sides' errors when they disagree, stop or die; and the memory that they take.
#include "worker/rank/comm/shared_messages.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <random>
#include <thread>

#include "tests/worker/rank/comm/peer_process.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/comm/shared_area.h"

namespace titan::comm {
namespace {

using mesh::Axis;

// Number of float32: more than a channel's slots hold.
constexpr int64_t kMoreThanAChannel = kMessageSlots * kSlotBytes / 4 + 1077;

// Returns the `number`-th message of `sender`, the same on every rank.
at::Tensor content(int sender, int64_t number, at::IntArrayRef sizes, at::ScalarType type) {
  const at::Tensor flat = at::arange(c10::multiply_integers(sizes), at::kInt) * 7 + 13 * number + 5 * sender;
  return flat.bitwise_and(63).to(type).view(sizes);
}

struct Received {
  Pending pending;
  at::Tensor tensor, expected;  // Undefined for a send.

  void check() {
    pending.wait();
    if (!expected.defined()) return;
    ASSERT_TRUE(tensor.equal(expected)) << expected.sizes() << " " << expected.scalar_type();
  }
};

Received receive(const Group& group, int peer, int tag, at::Tensor expected) {
  Received received{{}, at::full_like(expected, 99), std::move(expected)};
  received.pending = group.recv(received.tensor, peer, tag);
  return received;
}

// Returns the error that `call` throws if ranks disagree, or "nothing".
std::string disagreement_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return describe(error);
  }
  return "nothing";
}

class SharedMessagesTest : public ::testing::Test {
 protected:
  static void run(int world, const std::function<void(const Group&, int rank)>& body) {
    testing::run_ranks(
        {}, world, {Axis::kFsdp},
        [&](testing::ThreadRank& self) {
          ASSERT_TRUE(self.mesh->shares_memory());
          body(self.mesh->group(Axis::kFsdp), self.rank);
        },
        testing::Via::kSharedMemory);
  }
};

// All pairs of two to four ranks exchange messages in both directions at once, among collectives: from no bytes to many
// slots, of any shape and type, on three tags. Each rank issues and waits in a different order, so receives come before
// and after their messages.
TEST_F(SharedMessagesTest, ArriveAsSent) {
  struct Plan {
    int from, to, tag;
    int64_t number;
    std::vector<int64_t> sizes;
    at::ScalarType type;
  };
  const at::ScalarType types[] = {at::kBFloat16, at::kFloat, at::kDouble, at::kLong, at::kByte};
  const int64_t lengths[] = {0, 1, 33, 1001, 16'384, 16'385, 100'003};
  for (const int world : {2, 3, 4}) {
    run(world, [&](const Group& group, int rank) {
      std::mt19937 alike(11 + world), own(100 + rank);
      for (int round = 0; round < 12; ++round) {
        std::vector<std::vector<Plan>> channels;  // By pair and tag, in the order of sending.
        for (int pair = 0; pair < world * world; ++pair) {
          for (int tag = 0; tag < 3 && pair / world != pair % world; ++tag) {
            channels.emplace_back();
            for (int64_t number = alike() % 4; number > 0; --number) {
              const int64_t length = lengths[alike() % std::size(lengths)];
              const int64_t columns = alike() % 2 == 0 ? 1 : 3;
              channels.back().push_back({pair / world,
                                         pair % world,
                                         tag,
                                         number,
                                         {length / columns, columns},
                                         types[alike() % std::size(types)]});
            }
          }
        }
        std::vector<Pending> sends;
        std::vector<Received> received;
        at::Tensor sum = at::full({40'000}, rank + 1.0F);
        Pending summing;
        while (!channels.empty()) {
          if (channels.size() == 3 && !summing.active()) summing = group.all_reduce(sum);
          std::vector<Plan>& channel = channels[own() % channels.size()];
          if (!channel.empty() && (channel[0].from == rank || channel[0].to == rank)) {
            const Plan next = channel[0];
            channel.erase(channel.begin());
            const at::Tensor tensor = content(next.from, next.number, next.sizes, next.type);
            if (next.from == rank) sends.push_back(group.send(tensor, next.to, next.tag));
            if (next.to == rank) received.push_back(receive(group, next.from, next.tag, tensor));
          } else {
            std::swap(channel, channels.back());
            channels.pop_back();
          }
        }
        for (Pending& pending : sends) received.push_back({std::move(pending), {}, {}});
        std::shuffle(received.begin(), received.end(), own);
        for (Received& one : received) one.check();
        summing.wait();
        ASSERT_TRUE(sum.equal(at::full_like(sum, world * (world + 1) / 2.0F)));
      }
    });
  }
}

// Both directions are full at once, and neither order of waiting blocks.
TEST_F(SharedMessagesTest, LargerThanAChannelBothWays) {
  run(2, [](const Group& group, int rank) {
    Pending sending = group.send(content(rank, 0, {kMoreThanAChannel}, at::kFloat), 1 - rank);
    Received received = receive(group, 1 - rank, 0, content(1 - rank, 0, {kMoreThanAChannel}, at::kFloat));
    if (rank == 0) sending.wait();
    received.check();
    sending.wait();
  });
}

// More messages than slots are in flight in both directions before either side receives: in the order of sending with
// one tag, and backward with a tag each, where the last message is needed first.
TEST_F(SharedMessagesTest, ManyInFlight) {
  run(2, [](const Group& group, int rank) {
    constexpr int kMany = kMessageSlots * 3 / 2;
    for (const bool tagged : {false, true}) {
      std::vector<Pending> sends;
      for (int i = 0; i < kMany; ++i) {
        sends.push_back(group.send(content(rank, i, {i % 5 * 10}, at::kFloat), 1 - rank, tagged ? i : 0));
      }
      for (int i = 0; i < kMany; ++i) {
        const int number = tagged ? kMany - 1 - i : i;
        receive(group, 1 - rank, tagged ? number : 0, content(1 - rank, number, {number % 5 * 10}, at::kFloat)).check();
      }
      for (Pending& send : sends) send.wait();
    }
  });
}

// A message that does not fit into its slots makes progress while its sender waits for another group.
TEST_F(SharedMessagesTest, WaitingForAnotherGroupAdvancesThem) {
  testing::run_ranks(
      {.dp_shard = 1, .tp = 2}, 2, {Axis::kTensor, Axis::kWorld},
      [](testing::ThreadRank& self) {
        const Group& group = self.mesh->group(Axis::kTensor);
        const at::Tensor large = content(0, 1, {kMoreThanAChannel}, at::kFloat);
        Pending sending;
        if (self.rank == 0) sending = group.send(large, 1);
        if (self.rank == 1) receive(group, 0, 0, large).check();
        at::Tensor sum = at::ones({1});
        self.mesh->group(Axis::kWorld).all_reduce(sum).wait();
        sending.wait();
      },
      testing::Via::kSharedMemory);
}

// A thread that waits for an answer does not block another thread of its rank from sending.
TEST_F(SharedMessagesTest, WaitingDoesNotBlockOtherThreads) {
  run(2, [](const Group& group, int rank) {
    const at::Tensor question = content(0, 0, {100}, at::kFloat), answer = content(1, 0, {100}, at::kFloat);
    for (int round = 0; round < 50; ++round) {
      if (rank == 1) {
        receive(group, 0, 0, question).check();
        group.send(answer, 0).wait();
        continue;
      }
      Received received = receive(group, 1, 0, answer);
      std::latch begins(1);
      std::jthread waits([&] {
        begins.count_down();
        received.check();
      });
      begins.wait();
      group.send(question, 1).wait();
    }
  });
}

// Whichever side comes first, both get an error with both sides' descriptions, and the receiver's tensor is not
// written, even if the message had to be set aside and its sender could have continued.
TEST_F(SharedMessagesTest, DisagreementIsAnErrorOnBothSides) {
  struct Case {
    at::Tensor sent, requested;
    bool early;
    const char* words;
  };
  const Case cases[] = {
      {at::ones({5}), at::zeros({4}), false,
       "rank 0 of the group sends 20 bytes of Float with tag 3 but rank 1 of the group receives 16 bytes of Float"},
      {at::ones({2}, at::kDouble), at::zeros({4}), false, "sends 16 bytes of Double with tag 3 but rank 1"},
      {at::ones({0}), at::zeros({1}), true, "sends 0 bytes of Float with tag 3 but rank 1"},
      {at::ones({kMoreThanAChannel}), at::zeros({kMoreThanAChannel + 1}), true, "with tag 3 but rank 1 of the group"}};
  for (const Case& one : cases) {
    std::string thrown[2];
    run(2, [&](const Group& group, int rank) {
      thrown[rank] = disagreement_of([&] {
        if (rank == 0) {
          Pending sending = group.send(one.sent, 1, 3);
          if (one.early) group.send(at::ones({1}), 1, 4).wait();
          sending.wait();
        } else {
          if (one.early) receive(group, 0, 4, at::ones({1})).check();
          at::Tensor requested = one.requested;
          group.recv(requested, 0, 3).wait();
        }
        group.barrier();
      });
      EXPECT_THROW(group.barrier(), c10::ValueError) << "the group continues after an error";
    });
    for (const std::string& error : thrown) EXPECT_NE(error.find(one.words), std::string::npos) << error;
    EXPECT_EQ(one.requested.count_nonzero().item<int64_t>(), 0);
  }
}

// An abort from another thread ends the wait, whichever side waits; the other rank's error says that this one has
// ended.
TEST_F(SharedMessagesTest, AnAbortEndsEveryWait) {
  for (const bool sends : {true, false}) {
    testing::run_ranks(
        {}, 2, {Axis::kFsdp},
        [&](testing::ThreadRank& self) {
          const Group& group = self.mesh->group(Axis::kFsdp);
          at::Tensor tensor = at::ones({3});
          std::jthread other;
          if (self.rank == 0) other = std::jthread([&] { self.mesh->abort(); });
          try {
            // Waits for messages without a counterpart.
            (sends ? group.send(tensor, 1 - self.rank) : group.recv(tensor, 1 - self.rank)).wait();
            ADD_FAILURE() << "the group still works";
          } catch (const PeerLost& lost) {
            EXPECT_NE(std::string(lost.what()).find(self.rank == 0 ? "has aborted" : "is gone"), std::string::npos)
                << lost.what();
          }
        },
        testing::Via::kSharedMemory);
  }
}

// Runs both ends of a pair on one thread, step by step.
class MessageSteps : public ::testing::Test {
 protected:
  struct End {
    End(int number, std::unique_ptr<OwnArea>& area, const std::unique_ptr<OwnArea>& other)
        : own(std::move(area)), messages(number, *own, peers) {
      peers[1 - number] = PeerArea::open(other->invitation(), 2, number);
    }
    std::unique_ptr<OwnArea> own;
    std::vector<std::unique_ptr<PeerArea>> peers{2};
    SharedMessages messages;
  };

  void SetUp() override {
    std::unique_ptr<OwnArea> areas[] = {OwnArea::create(2), OwnArea::create(2)};
    sender_ = std::make_unique<End>(0, areas[0], areas[1]);
    receiver_ = std::make_unique<End>(1, areas[1], sender_->own);
  }

  std::shared_ptr<SharedMessage> post(bool sends, int tag, at::Tensor tensor) {
    auto message = std::make_shared<SharedMessage>(SharedMessage{.sends = sends, .peer = sends ? 1 : 0, .tag = tag});
    message->tensor = std::move(tensor);
    (sends ? sender_ : receiver_)->messages.post(message);
    return message;
  }
  void settle() {
    while (sender_->messages.advance() || receiver_->messages.advance()) continue;
  }
  const MessageChannel& channel() const { return sender_->own->memory().header().channels[1]; }
  uint32_t read() const { return receiver_->own->memory().header().messages_read[0].value; }

  std::unique_ptr<End> sender_, receiver_;
};

// A send is done only once its message was read. A message stays in its slots until the receiver needs it or a later
// one.
TEST_F(MessageSteps, NothingIsReadBeforeItIsNeeded) {
  const auto first = post(true, 1, at::full({3}, 1.0F)), second = post(true, 2, at::full({3}, 2.0F));
  settle();
  EXPECT_EQ(read(), 0);
  at::Tensor got_second = at::zeros({3}), got_first = at::zeros({3});
  const auto requested = post(false, 2, got_second);
  EXPECT_EQ(read(), 2);
  EXPECT_TRUE(requested->done && got_second.equal(at::full({3}, 2.0F)));
  EXPECT_FALSE(first->done || second->done);
  settle();
  EXPECT_TRUE(first->done && second->done);
  EXPECT_TRUE(post(false, 1, got_first)->done && got_first.equal(at::full({3}, 1.0F)));
}

// If a receiver keeps up, the same slots are reused: a channel uses only as much memory as was in flight at once.
TEST_F(MessageSteps, SlotsAreReused) {
  constexpr int64_t kTwoSlots = kSlotBytes / 4 + 5;
  at::Tensor got = at::zeros({kTwoSlots});
  for (int round = 0; round < 2 * static_cast<int>(kMessageSlots); ++round) {
    const at::Tensor sent = at::full({kTwoSlots}, round, at::kFloat);
    const auto sending = post(true, 0, sent), receiving = post(false, 0, got);
    settle();
    ASSERT_TRUE(sending->done && receiving->done && got.equal(sent)) << round;
  }
  for (const MessageRecord& record : channel().records) ASSERT_LT(record.slot, 2);
}

// However large a message is, a fast sender fills no more than the channel. It continues once the receiver has read.
TEST_F(MessageSteps, AChannelIsBounded) {
  const at::Tensor sent = content(0, 0, {2 * kMoreThanAChannel}, at::kFloat);
  const auto sending = post(true, 0, sent);
  while (sender_->messages.advance()) continue;
  EXPECT_EQ(channel().published.value, kMessageSlots);
  EXPECT_TRUE(sender_->messages.has_more_to_send());
  at::Tensor got = at::zeros_like(sent);
  const auto receiving = post(false, 0, got);
  settle();
  EXPECT_TRUE(sending->done && receiving->done && got.equal(sent));
  EXPECT_FALSE(sender_->messages.has_more_to_send());
}

// The action of the other process once both have joined.
enum class MessagePeer { kDies, kDiesWhileItSends, kReadsAvailableSlots, kLeavesWell };

TEST(SharedMessagesPeer, DISABLED_Acts) {
  const testing::PairedRank self = testing::join_as_peer();
  const auto acts = static_cast<MessagePeer>(testing::peer_acts());
  if (acts == MessagePeer::kDies) raise(SIGKILL);
  if (acts == MessagePeer::kReadsAvailableSlots) {
    self.wait_for_signal("sent");
    const Received received = receive(self.group(), 0, 0, content(0, 0, {kMoreThanAChannel}, at::kFloat));
    self.set_signal("read");
    self.wait_for_signal("never");
  }
  Pending sending =
      self.group().send(content(1, 0, {acts == MessagePeer::kLeavesWell ? 100 : kMoreThanAChannel}, at::kFloat), 0);
  if (acts == MessagePeer::kLeavesWell) _exit(0);
  raise(SIGKILL);
}

class SharedMessagesProcessTest : public testing::PeerProcessTest {
 protected:
  const Group& meet(MessagePeer acts) { return PeerProcessTest::meet("SharedMessagesPeer.*", static_cast<int>(acts)); }

  static Received large_one(const Group& group) {
    return receive(group, 1, 0, content(1, 0, {kMoreThanAChannel}, at::kFloat));
  }
};

constexpr char kSenderIsGone[] = "fsdp recv from rank 1: rank 1 of the group is gone";
constexpr char kReceiverIsGone[] = "fsdp send to rank 1: rank 1 of the group is gone";

TEST_F(SharedMessagesProcessTest, ASenderThatDiesBeforeItSendsIsGone) {
  const Group& group = meet(MessagePeer::kDies);
  EXPECT_EQ(error_of(large_one(group).pending), kSenderIsGone);
  EXPECT_THROW(group.barrier(), PeerLost);
}

TEST_F(SharedMessagesProcessTest, ASenderThatDiesWhileItSendsIsGone) {
  const Group& group = meet(MessagePeer::kDiesWhileItSends);
  wait_for_peer();  // Otherwise this rank's reading could free slots for all of it.
  EXPECT_EQ(error_of(large_one(group).pending), kSenderIsGone);
}

TEST_F(SharedMessagesProcessTest, AReceiverThatDiesBeforeItReadsIsGone) {
  const Group& group = meet(MessagePeer::kDies);
  EXPECT_EQ(error_of(group.send(at::ones({3}), 1)), kReceiverIsGone);
}

// The receiver has read what fits into the channel and then dies. Only then is the rest sent.
TEST_F(SharedMessagesProcessTest, AReceiverThatDiesWhileItReadsIsGone) {
  const Group& group = meet(MessagePeer::kReadsAvailableSlots);
  Pending sending = group.send(content(0, 0, {kMoreThanAChannel}, at::kFloat), 1);
  self().set_signal("sent");
  self().wait_for_signal("read");
  end_peer();
  EXPECT_EQ(error_of(std::move(sending)), kReceiverIsGone);
}

// Messages that a rank sent before its end arrive.
TEST_F(SharedMessagesProcessTest, SenderMayExitAfterItsPart) {
  const Group& group = meet(MessagePeer::kLeavesWell);
  wait_for_peer();
  receive(group, 1, 0, content(1, 0, {100}, at::kFloat)).check();
}

TEST_F(SharedMessagesProcessTest, ASendToAStoppedPeerEndsAfterTheTimeout) {
  const Group& group = meet(MessagePeer::kReadsAvailableSlots);
  stop_peer();
  group.set_timeout(std::chrono::milliseconds(200));
  EXPECT_EQ(error_of(group.send(at::ones({kMoreThanAChannel}), 1)),
            "fsdp send to rank 1: rank 1 of the group took no part within 200 ms");
}

TEST_F(SharedMessagesProcessTest, AReceiveFromAStoppedPeerEndsAfterTheTimeout) {
  const Group& group = meet(MessagePeer::kReadsAvailableSlots);
  stop_peer();
  group.set_timeout(std::chrono::milliseconds(200));
  EXPECT_EQ(error_of(large_one(group).pending),
            "fsdp recv from rank 1: rank 1 of the group took no part within 200 ms");
}

}  // namespace
}  // namespace titan::comm
