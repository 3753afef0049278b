// Tests collectives through shared memory: their results; a rank's errors when another one does something else, stops
// or dies; and that nothing is left over. comm_test.cc tests the operations over every transport.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <latch>
#include <numeric>
#include <random>

#include "tests/worker/rank/comm/peer_process.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/comm/shared_area.h"
#include "worker/rank/comm/store.h"

namespace titan::comm {
namespace {

using mesh::Axis;
using std::chrono::milliseconds;

constexpr int64_t kOverflowing = kSlots * kSlotBytes / 4 * 9 / 8 + 77;  // Number of float32: more than an area holds.

void run_sharing(int world, const std::function<void(const Group&, int rank)>& body) {
  testing::run_ranks(
      {}, world, {Axis::kFsdp},
      [&](testing::ThreadRank& self) {
        ASSERT_TRUE(self.mesh->shares_memory());
        body(self.mesh->group(Axis::kFsdp), self.rank);
      },
      testing::Via::kSharedMemory);
}

// Small integers: sums of a few are exact in every type.
at::Tensor numbers(int64_t seed, int rank, int64_t count, at::ScalarType type) {
  return (at::arange(count, at::kInt) * 7 + 13 * seed + 5 * rank).bitwise_and(31).to(type);
}

// One collective on data that every rank can compute for all: its result and the expected one.
struct Trial {
  Pending pending;
  at::Tensor output, expected;
};

Trial start(const Group& group, int kind, int64_t seed, int64_t count, at::ScalarType type) {
  const int size = group.size(), rank = group.rank();
  std::vector<at::Tensor> all;
  const int64_t inputs = kind == 1 || kind == 3 ? count * size : count;
  for (int from = 0; from < size; ++from) all.push_back(numbers(seed, from, inputs, type));
  const auto piece = [&](const at::Tensor& tensor) { return tensor.narrow(0, rank * count, count); };
  Trial trial;
  switch (kind) {
    case 0:
      trial.output = at::full({count * size}, -1, type);
      trial.expected = at::cat(all);
      trial.pending = group.all_gather(trial.output, all[rank]);
      break;
    case 1:
      trial.output = at::full({count}, -1, type);
      trial.expected = at::zeros({count}, type);
      for (const at::Tensor& one : all) trial.expected += piece(one);
      trial.pending = group.reduce_scatter(trial.output, all[rank]);
      break;
    case 2:
      trial.output = all[rank].clone();
      trial.expected = at::zeros({count}, type);
      for (const at::Tensor& one : all) trial.expected += one;
      trial.pending = group.all_reduce(trial.output);
      break;
    case 3: {
      trial.output = at::full({count * size}, -1, type);
      std::vector<at::Tensor> pieces;
      for (const at::Tensor& one : all) pieces.push_back(piece(one));
      trial.expected = at::cat(pieces);
      trial.pending = group.all_to_all(trial.output, all[rank]);
      break;
    }
    default:
      trial.output = all[rank].clone();
      trial.expected = all[seed % size];
      trial.pending = group.broadcast(trial.output, static_cast<int>(seed % size));
  }
  return trial;
}

// Collectives of no bytes, of odd sizes and of many slots, on every type, are in flight together. Each rank waits in a
// different order.
TEST(SharedMemoryTest, ManyInFlightInAnyOrder) {
  for (const int world : {2, 3, 4}) {
    run_sharing(world, [&](const Group& group, int rank) {
      std::mt19937 alike(3), own(100 + rank);
      const at::ScalarType types[] = {at::kBFloat16, at::kFloat, at::kDouble, at::kLong};
      const int64_t sizes[] = {0, 1, 7, 33, 1001, 40'003, 100'003};
      std::vector<Trial> trials;
      for (int64_t number = 0; number < 80; ++number) {
        const int kind = static_cast<int>(alike() % 5);
        const int64_t count = sizes[alike() % std::size(sizes)];
        trials.push_back(start(group, kind, number, count, types[alike() % std::size(types)]));
        if (trials.size() < 12) continue;
        std::shuffle(trials.begin(), trials.end(), own);
        for (size_t waited = 0; waited < 6; ++waited) {
          trials.back().pending.wait();
          ASSERT_TRUE(trials.back().output.equal(trials.back().expected)) << world << " ranks, before " << number;
          trials.pop_back();
        }
      }
      for (Trial& trial : trials) {
        trial.pending.wait();
        ASSERT_TRUE(trial.output.equal(trial.expected));
      }
    });
  }
}

// Several operations that are each larger than all slots are in flight together: a part without a slot is sent later,
// and the results are right to the bit.
TEST(SharedMemoryTest, LargerThanTheAreaInAnyOrder) {
  run_sharing(3, [&](const Group& group, int rank) {
    std::vector<Trial> trials;
    for (int kind = 0; kind < 5; ++kind) {
      const int64_t readers = kind == 1 || kind == 3 ? 2 : 1;  // Each reader gets a different piece.
      trials.push_back(start(group, kind, kind, kOverflowing / readers, at::kFloat));
    }
    if (rank == 1) std::reverse(trials.begin(), trials.end());
    for (Trial& trial : trials) {
      trial.pending.wait();
      ASSERT_TRUE(trial.output.equal(trial.expected));
    }
  });
}

// Operations of two groups do not fit into their areas, and ranks wait for them in opposite orders: a rank that waits
// for one group must also send for the other.
TEST(SharedMemoryTest, WaitingAdvancesOtherGroups) {
  testing::run_ranks(
      {.dp_shard = 1, .tp = 2}, 2, {Axis::kTensor, Axis::kWorld},
      [](testing::ThreadRank& self) {
        Trial one = start(self.mesh->group(Axis::kTensor), 0, 1, kOverflowing, at::kFloat);
        Trial two = start(self.mesh->group(Axis::kWorld), 2, 2, kOverflowing, at::kFloat);
        Trial& first = self.rank == 0 ? one : two;
        Trial& second = self.rank == 0 ? two : one;
        first.pending.wait();
        EXPECT_TRUE(first.output.equal(first.expected));
        second.pending.wait();
        EXPECT_TRUE(second.output.equal(second.expected));
      },
      testing::Via::kSharedMemory);
}

// Sums are taken in rank order and rounded at each addition, as over the other transports; every rank has the same
// bits.
TEST(SharedMemoryTest, SumsRoundInRankOrder) {
  run_sharing(3, [](const Group& group, int rank) {
    const float narrow[] = {256, 1, 1};  // In bfloat16 256 + 1 is 256.
    at::Tensor sum = at::full({5}, narrow[rank], at::kBFloat16);
    group.all_reduce(sum).wait();
    EXPECT_TRUE(sum.equal(at::full({5}, 256, at::kBFloat16)));
    at::Tensor piece = at::empty({5}, at::kBFloat16);
    group.reduce_scatter(piece, at::full({15}, narrow[rank], at::kBFloat16)).wait();
    EXPECT_TRUE(piece.equal(at::full({5}, 256, at::kBFloat16)));

    const float parts[] = {1e8F, -1e8F, 1.0F};  // (1e8 - 1e8) + 1 = 1; 1e8 + (-1e8 + 1) = 0 in float32.
    at::Tensor wide = at::full({5}, parts[rank]);
    group.all_reduce(wide).wait();
    EXPECT_TRUE(wide.equal(at::ones({5})));
  });
}

// Returns each rank's error after all ranks make `call`.
std::vector<std::string> disagreements(const std::function<Pending(const Group&, int rank)>& call) {
  std::vector<std::string> thrown(3);
  run_sharing(3, [&](const Group& group, int rank) {
    try {
      call(group, rank).wait();
    } catch (const c10::ValueError& error) {
      thrown[rank] = describe(error);
    }
    EXPECT_THROW(group.barrier(), c10::ValueError) << "the group continues after an error";
  });
  return thrown;
}

// If ranks disagree on a call, all of them get an error with both sides' descriptions.
TEST(SharedMemoryTest, DisagreementIsAnErrorOnEveryRank) {
  for (const std::string& error :
       disagreements([](const Group&group, int rank) { return group.all_reduce(at::ones({rank == 1 ? 5 : 4})); })) {
    EXPECT_NE(error.find("all_reduce of 20 bytes of Float"), std::string::npos) << error;
    EXPECT_NE(error.find("all_reduce of 16 bytes of Float"), std::string::npos) << error;
  }
  for (const std::string& error : disagreements([](const Group&group, int rank) {
         const at::Tensor tensor = at::ones({3}, rank == 1 ? at::kLong : at::kDouble);
         return group.all_reduce(tensor);
       })) {
    EXPECT_NE(error.find("of 24 bytes of Long"), std::string::npos) << error;
    EXPECT_NE(error.find("of 24 bytes of Double"), std::string::npos) << error;
  }
}

// If one rank does not share memory, all ranks use sockets.
TEST(SharedMemoryTest, AllRanksUseItOrNone) {
  const mesh::Mesh mesh = mesh::Mesh::create({}, 3).value();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto device = make_cpu_device();
      Ledger ledger;
      const DeviceMesh groups(mesh, {Axis::kFsdp}, *device, ledger,
                              {.rank = rank, .store = store, .shared_memory = rank != 1});
      for (int kind = 0; kind < 5; ++kind) {
        Trial trial = start(groups.group(Axis::kFsdp), kind, kind, 1001, at::kFloat);
        trial.pending.wait();
        EXPECT_TRUE(trial.output.equal(trial.expected));
      }
      EXPECT_FALSE(groups.shares_memory());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// An area opens only with its own invitation and size: not from another machine, with another token, for another group,
// or after its owner has forbidden it.
TEST(SharedMemoryTest, OnlyTheInvitedAreaOpens) {
  const auto area = OwnArea::create(/*members=*/2);
  ASSERT_TRUE(area);
  const std::string invitation = area->invitation();
  const auto open = [](const std::string& words, int members = 2) { return PeerArea::open(words, members, 1); };
  const auto peer = open(invitation);
  ASSERT_TRUE(peer);
  EXPECT_FALSE(open("none"));
  EXPECT_FALSE(open("0" + invitation)) << "another machine";
  EXPECT_FALSE(open(invitation + "1")) << "another token";
  EXPECT_FALSE(open(invitation, 3)) << "another group";
  area->forbid_opening();
  EXPECT_FALSE(open(invitation));
  EXPECT_FALSE(peer->is_gone());
  area->leave();
  EXPECT_TRUE(peer->is_gone());
}

// A rank that aborts, from any thread, ends its own waits and those of the other ranks that still need it.
TEST(SharedMemoryTest, AnAbortEndsEveryWait) {
  std::latch aborted(1);
  testing::run_ranks(
      {}, 2, {Axis::kFsdp},
      [&](testing::ThreadRank& self) {
        const Group& group = self.mesh->group(Axis::kFsdp);
        if (self.rank == 1) aborted.wait();
        Trial trial = start(group, 0, 1, kOverflowing, at::kFloat);
        std::jthread other;
        if (self.rank == 0) {
          other = std::jthread([&] {
            self.mesh->abort();
            aborted.count_down();
          });
        }
        try {
          trial.pending.wait();
          ADD_FAILURE() << "the group still works";
        } catch (const PeerLost& lost) {
          EXPECT_NE(std::string(lost.what()).find(self.rank == 0 ? "has aborted" : "is gone"), std::string::npos)
              << lost.what();
        }
      },
      testing::Via::kSharedMemory);
}

int open_descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

TEST(SharedMemoryTest, GroupClosesItsDescriptors) {
  const auto once = [] { run_sharing(3, [](const Group& group, int) { group.barrier(); }); };
  once();  // Gloo keeps some descriptors open after the first group.
  const int before = open_descriptors();
  once();
  EXPECT_EQ(open_descriptors(), before);
}

// The action of the other rank, a separate process, once both have joined.
enum class Peer { kDiesBefore, kDiesAfterIssue, kReads, kLeavesWell };

// Runs in the other process of the tests below, which is this program again.
TEST(SharedMemoryPeer, DISABLED_Acts) {
  const testing::PairedRank self = testing::join_as_peer();
  const auto acts = static_cast<Peer>(testing::peer_acts());
  if (acts == Peer::kDiesBefore) raise(SIGKILL);
  Trial trial = start(self.group(), 0, 1, acts == Peer::kLeavesWell ? 100 : kOverflowing, at::kFloat);
  if (acts == Peer::kLeavesWell) _exit(0);
  if (acts == Peer::kDiesAfterIssue) raise(SIGKILL);
  trial.pending.wait();
}

class SharedMemoryProcessTest : public testing::PeerProcessTest {
 protected:
  const Group& meet(Peer acts) { return PeerProcessTest::meet("SharedMemoryPeer.*", static_cast<int>(acts)); }

  // The wait reports that the peer has ended, much earlier than the timeout of 300 s.
  static void expect_gone(const Group& group, Trial trial) {
    EXPECT_EQ(error_of(std::move(trial.pending)), "fsdp all_gather among ranks 0, 1: rank 1 of the group is gone");
    EXPECT_THROW(group.barrier(), PeerLost);
  }
};

TEST_F(SharedMemoryProcessTest, APeerThatDiesBeforeItTakesPartIsGone) {
  const Group& group = meet(Peer::kDiesBefore);
  expect_gone(group, start(group, 0, 1, 100, at::kFloat));
}

TEST_F(SharedMemoryProcessTest, APeerThatDiesAfterItsFirstSlotsIsGone) {
  const Group& group = meet(Peer::kDiesAfterIssue);
  expect_gone(group, start(group, 0, 1, kOverflowing, at::kFloat));
}

// The peer has read, or is reading, the first slots and waits for the rest, which is sent only after its death.
TEST_F(SharedMemoryProcessTest, APeerThatDiesWhileItReadsIsGone) {
  const Group& group = meet(Peer::kReads);
  Trial trial = start(group, 0, 1, kOverflowing, at::kFloat);
  end_peer();
  expect_gone(group, std::move(trial));
}

// Messages that a rank sent before its end arrive.
TEST_F(SharedMemoryProcessTest, PeerMayExitAfterItsPart) {
  const Group& group = meet(Peer::kLeavesWell);
  wait_for_peer();
  Trial trial = start(group, 0, 1, 100, at::kFloat);
  trial.pending.wait();
  EXPECT_TRUE(trial.output.equal(trial.expected));
}

TEST_F(SharedMemoryProcessTest, StoppedPeerIsLostAfterTheTimeout) {
  const Group& group = meet(Peer::kReads);
  stop_peer();
  group.set_timeout(milliseconds(200));
  Trial trial = start(group, 0, 1, kOverflowing, at::kFloat);
  EXPECT_EQ(error_of(std::move(trial.pending)),
            "fsdp all_gather among ranks 0, 1: rank 1 of the group took no part within 200 ms");
}

}  // namespace
}  // namespace titan::comm
