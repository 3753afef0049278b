#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <random>
#include <thread>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/comm/store.h"

namespace titan::comm {
namespace {

using mesh::Axis;

at::Tensor range(int64_t count, double start, at::ScalarType type = at::kFloat) {
  return (at::arange(count, at::kDouble) + start).to(type);
}

// Every transport between CPU ranks keeps the same contract.
class GroupTest : public ::testing::TestWithParam<testing::Via> {
 protected:
  static void run(const mesh::Degrees& degrees, int world, const std::set<Axis>& axes,
                  const std::function<void(testing::ThreadRank&)>& body) {
    testing::run_ranks(degrees, world, axes, body, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, GroupTest,
                         ::testing::Values(testing::Via::kMemory, testing::Via::kGloo, testing::Via::kSharedMemory),
                         [](const auto& info) { return testing::name_of(info.param); });

// An operation that is issued and waited for during a recording is recorded with its axis, its size and its times in
// order, over any transport. One that is issued before it, or not finished at its end, is not recorded.
TEST_P(GroupTest, SpansRecordTheTimesOfEachOperation) {
  run({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kFsdp);
    at::Tensor whole = at::empty({8});
    Pending early = group.all_gather(whole, range(4, 0));
    self.spans->start();
    early.wait();
    at::Tensor gathered = at::empty({8}), piece = at::empty({4});
    Pending gathering = group.all_gather(gathered, range(4, 0));
    Pending reducing = group.reduce_scatter(piece, range(8, 0));
    gathering.wait();
    gathering.wait();  // A second wait adds nothing.
    reducing.wait();
    Pending unwaited = group.all_reduce(whole);
    const trace::RecordedSpans recorded = self.spans->stop();
    unwaited.wait();
    ASSERT_EQ(recorded.transfers.size(), 2U);
    EXPECT_STREQ(recorded.transfers[0].operation, "all_gather");
    EXPECT_STREQ(recorded.transfers[1].operation, "reduce_scatter");
    for (const trace::Transfer& one : recorded.transfers) {
      EXPECT_EQ(one.axis, "fsdp");
      EXPECT_EQ(one.ranks, 2);
      EXPECT_EQ(one.bytes, 32);
      EXPECT_LE(recorded.begin_ns, one.begin_ns);
      EXPECT_LE(one.begin_ns, one.issued_ns);
      EXPECT_LE(one.issued_ns, one.wait_ns);
      EXPECT_LE(one.wait_ns, one.end_ns);
      EXPECT_LE(one.end_ns, one.waited_ns);
      EXPECT_LE(one.waited_ns, recorded.end_ns);
    }
    EXPECT_TRUE(self.spans->stop().transfers.empty());
  });
}

// Each collective computes the right result on every data type of gradients and weights.
TEST_P(GroupTest, CollectivesComputeOnEveryType) {
  run({}, 3, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kFsdp);
    ASSERT_EQ(group.size(), 3);
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      at::Tensor gathered = at::empty({6}, type);
      group.all_gather(gathered, range(2, 10.0 * self.rank, type)).wait();
      const at::Tensor whole = at::cat({range(2, 0, type), range(2, 10, type), range(2, 20, type)});
      EXPECT_TRUE(gathered.equal(whole));

      at::Tensor own = at::full({6}, -1, type);  // A rank's piece is already in its place in the output.
      own.narrow(0, 2L * self.rank, 2).copy_(range(2, 10.0 * self.rank, type));
      group.all_gather(own, own.narrow(0, 2L * self.rank, 2)).wait();
      EXPECT_TRUE(own.equal(whole));

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

// reduce_scatter adds in rank order, whatever arrives first: (a + b) + c, never a + (b + c).
TEST_P(GroupTest, ReduceScatterAddsInRankOrder) {
  run({}, 3, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const float parts[] = {1e8F, -1e8F, 1.0F};  // (1e8 - 1e8) + 1 = 1; 1e8 + (-1e8 + 1) = 0 in fp32.
    at::Tensor piece = at::empty({4});
    self.mesh->group(Axis::kFsdp).reduce_scatter(piece, at::full({12}, parts[self.rank])).wait();
    EXPECT_TRUE(piece.equal(at::ones({4})));
  });
}

// Two collectives in flight on one group may be waited for in any order.
TEST_P(GroupTest, SeveralInFlight) {
  run({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
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

// Returns the rows that rank `from` sends to rank `to`. The values depend on both ranks and on the row's number.
at::Tensor labelled_rows(int64_t from, int64_t to, int64_t rows, int64_t width, at::ScalarType type) {
  return ((at::arange(rows, at::kDouble).remainder(16) * 9 + from * 3 + to).view({rows, 1}).expand({rows, width}))
      .to(type);
}

// Exchanges pieces of uneven sizes, some without rows, of any width and type, many times in a row on one group.
TEST_P(GroupTest, UnevenAllToAll) {
  constexpr int kWorld = 3;
  run({.dp_shard = 1, .tp = kWorld, .etp = kWorld}, kWorld, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kTensor);
    std::mt19937 random(17);  // The same sizes on every rank.
    const at::ScalarType types[] = {at::kFloat, at::kDouble, at::kBFloat16};
    for (int round = 0; round < 60; ++round) {
      const at::ScalarType type = types[random() % 3];
      const int64_t width = 1 + static_cast<int64_t>(random() % 300);
      const unsigned zero_share = random() % 4;
      int64_t rows[kWorld][kWorld];
      for (auto& line : rows) {
        for (int64_t& count : line) count = random() % 4 < zero_share ? 0 : static_cast<int64_t>(random() % 100);
      }
      std::vector<int64_t> to_send(kWorld), to_get(kWorld);
      std::vector<at::Tensor> own, expected;
      for (int peer = 0; peer < kWorld; ++peer) {
        to_send[peer] = rows[self.rank][peer];
        to_get[peer] = rows[peer][self.rank];
        own.push_back(labelled_rows(self.rank, peer, to_send[peer], width, type));
        expected.push_back(labelled_rows(peer, self.rank, to_get[peer], width, type));
      }
      const at::Tensor wanted = at::cat(expected);
      at::Tensor output = at::empty_like(wanted);
      group.all_to_all(output, at::cat(own), to_get, to_send).wait();
      ASSERT_TRUE(output.equal(wanted)) << "round " << round;
    }
  });
}

// Messages of one tag arrive in the order in which they were sent; messages of different tags in the order in which
// they are received. Other collectives on the group, and messages of another group of the same ranks, do not mix with
// them.
TEST_P(GroupTest, MessagesByTagAndOrder) {
  run({.dp_shard = 1, .tp = 2, .etp = 2}, 2, {Axis::kTensor, Axis::kExpertTensor}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kTensor);
    const Group& other = self.mesh->group(Axis::kExpertTensor);
    const int peer = 1 - self.rank;
    constexpr int kRounds = 30;
    std::mt19937 random(5);
    std::vector<Pending> sends;
    std::vector<int64_t> sizes;
    for (int round = 0; round < kRounds; ++round) {
      sizes.push_back(static_cast<int64_t>(random() % 5000));
      const at::ScalarType type = round % 2 == 0 ? at::kDouble : at::kBFloat16;
      for (int tag : {0, 1, 1 << 20}) {
        sends.push_back(group.send(at::full({sizes.back()}, 100 * self.rank + round % 50 + tag % 7, type), peer, tag));
      }
      sends.push_back(other.send(at::full({sizes.back()}, -round, type), peer, 0));
      at::Tensor sum = at::ones({3});
      group.all_reduce(sum).wait();
      at::Tensor gathered = at::empty({2});
      group.all_gather(gathered, at::full({1}, 1.0F * self.rank)).wait();
      ASSERT_TRUE(gathered.equal(at::arange(2, at::kFloat)));
    }
    for (int tag : {1 << 20, 0, 1}) {
      for (int round = 0; round < kRounds; ++round) {
        at::Tensor got = at::empty({sizes[round]}, round % 2 == 0 ? at::kDouble : at::kBFloat16);
        group.recv(got, peer, tag).wait();
        ASSERT_TRUE(got.equal(at::full_like(got, 100 * peer + round % 50 + tag % 7))) << tag << ", round " << round;
      }
    }
    for (int round = 0; round < kRounds; ++round) {
      at::Tensor got = at::empty({sizes[round]}, round % 2 == 0 ? at::kDouble : at::kBFloat16);
      other.recv(got, peer, 0).wait();
      ASSERT_TRUE(got.equal(at::full_like(got, -round)));
    }
    for (Pending& send : sends) send.wait();
  });
}

TEST_P(GroupTest, ReducesByMaximumAndMinimum) {
  run({}, 3, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kFsdp);
    at::Tensor maximum = range(3, self.rank);
    group.all_reduce(maximum, c10d::ReduceOp::MAX).wait();
    EXPECT_TRUE(maximum.equal(range(3, 2)));
    at::Tensor minimum = range(3, self.rank, at::kInt);
    group.all_reduce(minimum, c10d::ReduceOp::MIN).wait();
    EXPECT_TRUE(minimum.equal(range(3, 0, at::kInt)));
  });
}

// Between ranks that are threads, issuing an operation never blocks, whichever side is late, and a result that other
// ranks write does not change its tensor's version.
TEST(LocalGroupTest, IssueNeitherBlocksNorChangesVersions) {
  testing::run_ranks({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kFsdp);
    at::Tensor leaf = at::ones({4}).set_requires_grad(true);
    const auto version = leaf._version();
    Pending sum = group.all_reduce(leaf.variable_data());
    Pending out = group.send(at::full({2}, 1.0F + self.rank), 1 - self.rank, 3);
    at::Tensor got = at::empty({2});
    Pending in = group.recv(got, 1 - self.rank, 3);
    in.wait();
    out.wait();
    sum.wait();
    EXPECT_EQ(got[0].item<float>(), 2.0F - self.rank);
    EXPECT_TRUE(leaf.detach().equal(at::full({4}, 2.0F)));
    EXPECT_EQ(leaf._version(), version);
  });
}

// All-reduces also add in rank order, so every run has the same bits.
TEST(LocalGroupTest, AllReduceAddsInRankOrder) {
  testing::run_ranks({}, 3, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const float parts[] = {1e8F, -1e8F, 1.0F};
    at::Tensor sum = at::full({4}, parts[self.rank]);
    self.mesh->group(Axis::kFsdp).all_reduce(sum).wait();
    EXPECT_TRUE(sum.equal(at::ones({4})));
  });
}

// Returns the error of each rank after all ranks call `differ`, which differs on rank 1.
std::vector<std::string> errors_of(const std::function<Pending(const Group&, int rank)>& differ) {
  std::vector<std::string> errors(3);
  testing::run_ranks({}, 3, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
    try {
      differ(self.mesh->group(Axis::kFsdp), self.rank).wait();
    } catch (const c10::ValueError& error) {  // The error is not PeerLost.
      errors[self.rank] = describe(error);
    }
  });
  return errors;
}

// If ranks disagree on a call, all of them get an error with both sides' descriptions.
TEST(LocalGroupTest, DisagreementIsAnErrorOnEveryRank) {
  for (const std::string& error :
       errors_of([](const Group&group, int rank) { return group.all_reduce(at::ones({rank == 1 ? 5 : 4})); })) {
    EXPECT_NE(error.find("all_reduce SUM of 5 Float"), std::string::npos) << error;
    EXPECT_NE(error.find("all_reduce SUM of 4 Float"), std::string::npos) << error;
  }
  for (const std::string& error : errors_of([](const Group&group, int rank) {
         const at::Tensor tensor = at::ones({3});
         return rank == 1 ? group.all_gather(at::empty({9}), tensor) : group.all_reduce(tensor);
       })) {
    EXPECT_NE(error.find("all_gather"), std::string::npos) << error;
    EXPECT_NE(error.find("all_reduce"), std::string::npos) << error;
  }
  for (const std::string& error : errors_of([](const Group&group, int rank) {
         std::vector<int64_t> splits{1, 1, 1}, wrong{2, 0, 1};
         return group.all_to_all(at::empty({3, 2}), at::ones({3, 2}), splits, rank == 1 ? wrong : splits);
       })) {
    EXPECT_NE(error.find("expects 1 rows from rank 1"), std::string::npos) << error;
  }
}

// A rank that fails wakes the others wherever they wait (in a collective, in a message, in the store), and their later
// calls fail, too.
TEST(LocalGroupTest, AFailedRankWakesTheOthers) {
  auto hub = std::make_shared<LocalHub>();
  const mesh::Mesh mesh = mesh::Mesh::create({}, 4).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      auto device = make_local_device(hub);
      Ledger ledger;
      DeviceMesh groups(mesh, {Axis::kFsdp}, *device, ledger, {.rank = rank, .store = hub->store()});
      const Group& group = groups.group(Axis::kFsdp);
      group.barrier();
      at::Tensor tensor = at::ones({2});
      if (rank == 0) {
        EXPECT_THROW(group.all_reduce(tensor).wait(), PeerLost);
      } else if (rank == 1) {
        EXPECT_THROW(group.recv(tensor, 3).wait(), PeerLost);
      } else if (rank == 2) {
        EXPECT_ANY_THROW(hub->store()->wait({"never"}));
      } else {
        hub->fail("rank 3 failed: out of luck");
      }
      try {
        group.barrier();
        ADD_FAILURE() << "the group still works";
      } catch (const PeerLost& lost) {
        EXPECT_NE(std::string(lost.what()).find("out of luck"), std::string::npos) << lost.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Every axis of a 4D mesh has a separate sequence: operations on groups that share ranks may be issued in different
// orders.
TEST(LocalGroupTest, GroupsOfTheSameRanksAreIndependent) {
  testing::run_ranks({.dp_shard = 1, .tp = 2}, 2, testing::every_axis(), [](testing::ThreadRank& self) {
    at::Tensor one = at::ones({1}), two = at::ones({2});
    const Group& tensor = self.mesh->group(Axis::kTensor);
    const Group& world = self.mesh->group(Axis::kWorld);
    Pending first = self.rank == 0 ? tensor.all_reduce(one) : world.all_reduce(two);
    Pending second = self.rank == 0 ? world.all_reduce(two) : tensor.all_reduce(one);
    first.wait();
    second.wait();
    EXPECT_EQ(one.item<float>() + two.sum().item<float>(), 6.0F);
  });
}

// Eight ranks with a group for every axis of a 4D mesh start quickly, over every transport.
TEST_P(GroupTest, EightRanksWithEveryAxisStart) {
  const auto began = std::chrono::steady_clock::now();
  run({.pp = 2, .dp_shard = 2, .tp = 2, .ep = 2}, 8, testing::every_axis(), [](testing::ThreadRank& self) {
    for (const Axis axis : mesh::kAllAxes) {
      at::Tensor count = at::ones({1});
      self.mesh->group(axis).all_reduce(count).wait();
      EXPECT_EQ(count.item<float>(), static_cast<float>(self.mesh->group(axis).size())) << mesh::name(axis);
    }
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  std::printf("8 ranks, every axis: %.3f s\n", seconds.count());
}

// The ledger counts calls and bytes of the whole tensor, by group and operation. A group of one rank adds nothing.
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

// If a rank ends, the others' collective throws PeerLost, at once and with the collective's name.
TEST_P(GroupTest, MissingPeerIsPeerLost) {
  run({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
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

// A peer that lives but does not take part is lost after the group's timeout, even if that was shortened after the
// start.
TEST_P(GroupTest, SilentPeerIsPeerLostAfterTheTimeout) {
  std::promise<void> timed_out;
  std::shared_future<void> over = timed_out.get_future().share();
  run({}, 2, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kFsdp);
    group.barrier();
    group.set_timeout(std::chrono::milliseconds(300));
    if (self.rank == 1) return over.wait();
    at::Tensor gathered = at::empty({2});
    EXPECT_THROW(group.all_gather(gathered, at::ones({1})).wait(), PeerLost);
    timed_out.set_value();
  });
}

// Rank 0 takes over the listening socket that it inherits; others reach it by address and see its keys.
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

class LateWork : public c10d::Work {
 public:
  static constexpr std::chrono::milliseconds kLate{20};
  bool isCompleted() override { return false; }
  bool wait(std::chrono::milliseconds) override {
    std::this_thread::sleep_for(kLate);
    return true;
  }
};

// A rank's waiting time is the time inside its first wait(): the time before it and a second wait do not count.
TEST(LedgerTest, CountsTheTimeSpentWaiting) {
  Ledger ledger;
  const Call call{std::make_shared<const std::string>("fsdp"), std::make_shared<const std::string>(""), "all_gather"};
  Pending pending(c10::make_intrusive<LateWork>(), call, {}, nullptr, &ledger);
  EXPECT_EQ(ledger.waited_nanos(), 0);
  const auto began = std::chrono::steady_clock::now();
  pending.wait();
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
  const int64_t waited = ledger.waited_nanos();
  EXPECT_GE(waited, std::chrono::nanoseconds(LateWork::kLate).count());
  EXPECT_LE(waited, took.count());
  pending.wait();
  EXPECT_EQ(ledger.waited_nanos(), waited);
}

// Operations of a mesh count their waiting time over any transport. A group of one rank does not wait.
TEST_P(GroupTest, LedgerCountsWaitingTime) {
  run({}, 2, {Axis::kFsdp, Axis::kTensor}, [](testing::ThreadRank& self) {
    at::Tensor whole = at::empty({8});
    self.mesh->group(Axis::kTensor).all_gather(at::empty({4}), range(4, 0)).wait();
    EXPECT_EQ(self.ledger.waited_nanos(), 0);
    self.mesh->group(Axis::kFsdp).all_gather(whole, range(4, 0)).wait();
    const int64_t gathered = self.ledger.waited_nanos();
    EXPECT_GT(gathered, 0);
    self.mesh->group(Axis::kFsdp).barrier();
    EXPECT_GT(self.ledger.waited_nanos(), gathered);
  });
}

// Without a server, make_store() throws a PeerLost that names the address, after the timeout.
TEST(StoreTest, MissingServerIsPeerLost) {
  try {
    make_store({.port = 1, .timeout = std::chrono::milliseconds(300)});
    FAIL() << "connected without a server";
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
