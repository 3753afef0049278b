// Whose fault a failure is, and how the ranks of an attempt learn of each other's.
#include "worker/runtime/failure.h"

#include <c10/core/impl/alloc_cpu.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <new>

#include "worker/comm/group.h"
#include "worker/comm/store.h"
#include "worker/runtime/failure_watch.h"

namespace titan::runtime {
namespace {

using namespace rank_protocol;
using std::chrono::milliseconds;

Failure failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (...) {
    return current_failure();
  }
  return {kExitFinished, "NOTHING", "nothing was thrown"};
}

// What a collective throws (comm/translate.h) keeps its kind up to the exit code.
TEST(FailureTest, ExitCodesSayWhoseFaultItIs) {
  EXPECT_EQ(failure_of([] { throw comm::PeerLost("gone"); }).exit_code(), kExitPeerLost);
  EXPECT_EQ(failure_of([] { C10_THROW_ERROR(DistStoreError, "gone"); }).exit_code(), kExitPeerLost);
  EXPECT_EQ(failure_of([] { C10_THROW_ERROR(OutOfMemoryError, "full"); }).exit_code(), kExitOutOfMemory);
  EXPECT_EQ(failure_of([] { throw std::bad_alloc(); }).exit_code(), kExitOutOfMemory);
  EXPECT_EQ(failure_of([] { c10::free_cpu(c10::alloc_cpu(size_t{1} << 60)); }).exit_code(), kExitOutOfMemory);
  EXPECT_EQ(failure_of([] { TORCH_CHECK_VALUE(false, "a shape"); }).exit_code(), kExitInternal);
  EXPECT_EQ(failure_of([] { throw std::runtime_error("a bug"); }).exit_code(), kExitInternal);
}

// The watches of the ranks of one attempt over a real store, and what they did.
class Attempt {
 public:
  explicit Attempt(int world, milliseconds patience = milliseconds(60'000)) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener, 16), 0);
    socklen_t length = sizeof(address);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    for (int rank = 0; rank < world; ++rank) {
      ranks_.push_back(std::make_unique<Rank>());
      Rank& own = *ranks_.back();
      comm::StoreOptions options{.port = ntohs(address.sin_port), .server = rank == 0};
      if (rank == 0) options.listen_fd = listener;
      if (rank == 0) server_ = comm::make_store(options);
      const auto store = rank == 0 ? server_ : comm::make_store(options);
      own.watch = std::make_unique<FailureWatch>(
          FailureWatch::Setup{.rank = rank,
                              .world = world,
                              .store = comm::prefixed(store, "attempt-1"),
                              .break_connections = [&own] { own.broken.set_value(); },
                              .leave = [&own](const Failure& failure) { own.left.set_value(failure.what()); },
                              .patience = patience});
    }
  }

  FailureWatch& watch(int rank) { return *ranks_[rank]->watch; }
  void end_watch(int rank) { ranks_[rank]->watch.reset(); }
  bool is_broken(int rank, milliseconds within) {
    return ranks_[rank]->broken_seen.wait_for(within) == std::future_status::ready;
  }
  std::string left_with(int rank) { return ranks_[rank]->left.get_future().get(); }

 private:
  struct Rank {
    std::promise<void> broken;
    std::future<void> broken_seen = broken.get_future();
    std::promise<std::string> left;
    std::unique_ptr<FailureWatch> watch;
  };
  c10::intrusive_ptr<c10d::Store> server_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

constexpr milliseconds kSoon(5'000);
const Failure kNoMemory(kExitOutOfMemory, "OUT_OF_MEMORY", "no memory for 3 GiB");
const Failure kLost(kExitPeerLost, "PEER_LOST", "tp all_reduce among ranks 1, 2: connection closed");

// A rank that fails breaks everybody's connections, and the others name it and its reason when they end.
TEST(FailureWatchTest, TheFirstReasonReachesEveryRank) {
  for (const int culprit : {0, 1}) {
    Attempt attempt(3);
    const Failure own = attempt.watch(culprit).failed(kNoMemory);
    EXPECT_EQ(own.exit_code(), kExitOutOfMemory);
    EXPECT_STREQ(own.what(), kNoMemory.what());
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(attempt.is_broken(rank, kSoon)) << rank;
      if (rank == culprit) continue;
      const Failure told = attempt.watch(rank).failed(kLost);
      EXPECT_EQ(told.exit_code(), kExitPeerLost);
      EXPECT_EQ(told.what(), std::string(kLost.what()) + "; the first to fail was rank " + std::to_string(culprit) +
                                 ": OUT_OF_MEMORY: no memory for 3 GiB");
    }
  }
}

// A rank whose connections were broken for another's failure computes with what an aborted kernel left.
TEST(FailureWatchTest, WhatAnAbortCutsShortIsNoCause) {
  Attempt attempt(2);
  attempt.watch(0).failed(kNoMemory);
  ASSERT_TRUE(attempt.is_broken(1, kSoon));
  const Failure after = attempt.watch(1).failed(Failure(kExitUserError, "NONFINITE_LOSS", "loss nan"));
  EXPECT_EQ(after.exit_code(), kExitPeerLost);
  EXPECT_EQ(std::string(after.what()),
            "NONFINITE_LOSS: loss nan; the first to fail was rank 0: OUT_OF_MEMORY: no memory for 3 GiB");
}

// A mistake that every rank runs into is every rank's, and so is what no abort can bring about.
TEST(FailureWatchTest, OwnFailuresStayOwn) {
  const Failure nonfinite(kExitUserError, "NONFINITE_LOSS", "loss nan");
  const Failure data(kExitUserError, "DATA", "no such file");
  const std::pair<Failure, Failure> pairs[] = {{data, data}, {nonfinite, nonfinite}, {kNoMemory, data}};
  for (const auto& [first, second] : pairs) {
    Attempt attempt(2);
    attempt.watch(0).failed(first);
    ASSERT_TRUE(attempt.is_broken(1, kSoon));
    const Failure own = attempt.watch(1).failed(second);
    EXPECT_EQ(own.reason(), second.reason());
    EXPECT_STREQ(own.what(), second.what());
  }
}

// A rank that does not notice is ended, with the reason.
TEST(FailureWatchTest, WhoDoesNotNoticeIsEnded) {
  Attempt attempt(2, milliseconds(50));
  attempt.watch(1).failed(kNoMemory);
  EXPECT_EQ(attempt.left_with(0), "the attempt has failed, first rank 1: OUT_OF_MEMORY: no memory for 3 GiB");
}

// Training that has ended well is not disturbed any more.
TEST(FailureWatchTest, AnEndedWatchDoesNothing) {
  Attempt attempt(2, milliseconds(1));
  attempt.end_watch(0);
  attempt.watch(1).failed(kNoMemory);
  EXPECT_FALSE(attempt.is_broken(0, milliseconds(200)));
}

}  // namespace
}  // namespace titan::runtime
