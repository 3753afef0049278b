#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "tests/worker/comm/thread_ranks.h"
#include "worker/comm/store.h"

namespace titan::comm {
namespace {

using mesh::Axis;

at::Tensor range(int64_t count, double start, at::ScalarType type = at::kFloat) {
  return (at::arange(count, at::kDouble) + start).to(type);
}

// Each collective does what its name says, on every data type that gradients and weights travel in.
TEST(GroupTest, CollectivesComputeOnEveryType) {
  testing::run_ranks({}, 3, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kFsdp);
    ASSERT_EQ(group.size(), 3);
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      at::Tensor gathered = at::empty({6}, type);
      group.all_gather(gathered, range(2, 10.0 * self.rank, type)).wait();
      EXPECT_TRUE(gathered.equal(at::cat({range(2, 0, type), range(2, 10, type), range(2, 20, type)})));

      at::Tensor piece = at::empty({2}, type);
      group.reduce_scatter(piece, range(6, self.rank, type)).wait();
      EXPECT_TRUE(piece.equal((3 * (at::arange(2) + 2 * self.rank) + 3).to(type)));

      at::Tensor sum = range(4, self.rank, type);
      group.all_reduce(sum).wait();
      EXPECT_TRUE(sum.equal((3 * at::arange(4) + 3).to(type)));

      at::Tensor exchanged = at::empty({3}, type);
      group.all_to_all(exchanged, range(3, 10.0 * self.rank, type)).wait();
      EXPECT_TRUE(exchanged.equal((10 * at::arange(3) + self.rank).to(type)));

      at::Tensor shared = range(4, self.rank, type);
      group.broadcast(shared, 1).wait();
      EXPECT_TRUE(shared.equal(range(4, 1, type)));
    }
    group.barrier();
  });
}

// The sum of a reduce_scatter is taken in rank order, whatever arrives first: ((a + b) + c) and not another bracketing.
TEST(GroupTest, ReduceScatterAddsInRankOrder) {
  testing::run_ranks({}, 3, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const float parts[] = {1e8F, -1e8F, 1.0F};  // (1e8 - 1e8) + 1 = 1; 1e8 + (-1e8 + 1) = 0 in fp32.
    at::Tensor piece = at::empty({4});
    self.mesh->group(Axis::kFsdp).reduce_scatter(piece, at::full({12}, parts[self.rank])).wait();
    EXPECT_TRUE(piece.equal(at::ones({4})));
  });
}

// Two collectives in flight on one group complete in any order of waiting.
TEST(GroupTest, SeveralInFlight) {
  testing::run_ranks({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kFsdp);
    at::Tensor first = at::empty({2});
    at::Tensor second = at::empty({2});
    Pending one = group.all_gather(first, at::full({1}, 1.0F + self.rank));
    Pending two = group.reduce_scatter(second, at::full({4}, 1.0F));
    two.wait();
    one.wait();
    EXPECT_EQ(first[1].item<float>(), 2.0F);
    EXPECT_EQ(second[0].item<float>(), 2.0F);
  });
}

// Counts are taken inside the backend: calls and bytes of the whole tensor, by group and operation; a group of one has
// none.
TEST(LedgerTest, CountsCallsAndBytesByGroup) {
  testing::run_ranks({.dp_replicate = 2, .dp_shard = 2}, 4,
                     {Axis::kFsdp, Axis::kReplicate, Axis::kTensor, Axis::kWorld}, [](testing::ThreadRank& self) {
                       std::atomic<int64_t> sequence{0};
                       self.ledger.mirror_sequence(&sequence);
                       at::Tensor out = at::empty({8});
                       self.mesh->group(Axis::kFsdp).all_gather(out, at::ones({4})).wait();
                       const LedgerCounts before = self.ledger.counts();
                       at::Tensor piece = at::empty({4}, at::kDouble);
                       self.mesh->group(Axis::kFsdp).reduce_scatter(piece, at::ones({8}, at::kDouble)).wait();
                       self.mesh->group(Axis::kReplicate).all_reduce(piece).wait();
                       self.mesh->group(Axis::kReplicate).all_reduce(piece).wait();
                       self.mesh->group(Axis::kTensor).all_reduce(piece).wait();
                       self.mesh->group(Axis::kWorld).barrier();
                       EXPECT_EQ(before, (LedgerCounts{{"fsdp/all_gather", {1, 32}}}));
                       EXPECT_EQ(subtract(self.ledger.counts(), before),
                                 (LedgerCounts{{"dp_replicate/all_reduce", {2, 64}},
                                               {"fsdp/reduce_scatter", {1, 64}},
                                               {"world/barrier", {1, 0}}}));
                       EXPECT_EQ(sequence.load(), 5);
                       self.ledger.mirror_sequence(nullptr);
                     });
}

// A rank that goes away turns the others' collective into PeerLost, at once and with the collective's name.
TEST(GroupTest, MissingPeerIsPeerLost) {
  testing::run_ranks({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    if (self.rank == 1) return;  // Its connections close.
    at::Tensor tensor = at::ones({4});
    try {
      self.mesh->group(Axis::kFsdp).all_reduce(tensor).wait();
      FAIL() << "the collective completed without its peer";
    } catch (const PeerLost& lost) {
      EXPECT_NE(std::string(lost.what()).find("fsdp all_reduce"), std::string::npos) << lost.what();
    }
  });
}

// A peer that lives but takes no part is given up after the group's timeout, also when that was shortened after the
// start.
TEST(GroupTest, SilentPeerIsPeerLostAfterTheTimeout) {
  std::promise<void> given_up;
  std::shared_future<void> over = given_up.get_future().share();
  testing::run_ranks({}, 2, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kFsdp);
    group.barrier();
    group.set_timeout(std::chrono::milliseconds(300));
    if (self.rank == 1) return over.wait();
    at::Tensor gathered = at::empty({2});
    EXPECT_THROW(group.all_gather(gathered, at::ones({1})).wait(), PeerLost);
    given_up.set_value();
  });
}

// Rank 0 takes over the listening socket it inherits; others reach it by address and see its keys.
TEST(StoreTest, ServerOnInheritedSocket) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 16), 0);
  socklen_t length = sizeof(address);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);

  auto server = make_store({.server = true, .listen_fd = listener});
  auto client = make_store({.port = ntohs(address.sin_port)});
  prefixed(server, "a1")->set("key", "value");
  EXPECT_EQ(prefixed(client, "a1")->get_to_str("key"), "value");
  EXPECT_FALSE(prefixed(client, "a2")->check({"key"}));
}

// No server: PeerLost naming the address, after the timeout.
TEST(StoreTest, NobodyListens) {
  try {
    make_store({.port = 1, .timeout = std::chrono::milliseconds(300)});
    FAIL() << "connected to nobody";
  } catch (const PeerLost& lost) {
    EXPECT_NE(std::string(lost.what()).find("127.0.0.1:1"), std::string::npos) << lost.what();
  }
}

TEST(DeviceTest, UnknownAndUnavailableDevicesAreNamed) {
  EXPECT_EQ(make_device("tpu", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(make_device("cpu", 0).ok());
}

}  // namespace
}  // namespace titan::comm
