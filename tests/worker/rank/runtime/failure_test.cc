// Tests how a failure is classified, and how the ranks of an attempt learn of each other's failures.
#include "worker/rank/runtime/failure/failure.h"

#include <c10/core/impl/alloc_cpu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <new>

#include "worker/rank/comm/group.h"
#include "worker/rank/comm/store.h"
#include "worker/rank/runtime/failure/failure_watch.h"

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

// The kind of a collective's error (comm/group.h) decides the exit code.
TEST(FailureTest, ExitCodesClassifyFailures) {
  EXPECT_EQ(failure_of([] { throw comm::PeerLost("gone"); }).exit_code(), kExitPeerLost);
  EXPECT_EQ(failure_of([] { C10_THROW_ERROR(DistStoreError, "gone"); }).exit_code(), kExitPeerLost);
  EXPECT_EQ(failure_of([] { C10_THROW_ERROR(OutOfMemoryError, "full"); }).exit_code(), kExitOutOfMemory);
  EXPECT_EQ(failure_of([] { throw std::bad_alloc(); }).exit_code(), kExitOutOfMemory);
  EXPECT_EQ(failure_of([] { c10::free_cpu(c10::alloc_cpu(size_t{1} << 60)); }).exit_code(), kExitOutOfMemory);
  EXPECT_EQ(failure_of([] { TORCH_CHECK_VALUE(false, "a shape"); }).exit_code(), kExitInternal);
  EXPECT_EQ(failure_of([] { throw std::runtime_error("a bug"); }).exit_code(), kExitInternal);
}

// Another attempt may succeed once the hub is up again: the failure is neither the user's mistake nor a lost rank.
TEST(FailureTest, UnreachableDataIsAStorageFailure) {
  const absl::Status down = absl::UnavailableError("the hub is down");
  const Failure of_data = failure_of([&] { check(down, kExitUserError, "DATA"); });
  EXPECT_EQ(of_data.exit_code(), kExitStorage);
  EXPECT_EQ(of_data.reason(), "DATA");
  EXPECT_EQ(failure_of([&] { check(down, kExitUserError, "CHECKPOINT"); }).exit_code(), kExitPeerLost);
  EXPECT_EQ(failure_of([] { check(absl::NotFoundError("x"), kExitUserError, "DATA"); }).exit_code(), kExitUserError);
  // Another attempt cannot succeed in a place where the user may not write.
  const Failure denied = failure_of([] { check(absl::PermissionDeniedError("open f"), kExitStorage, "FENCE"); });
  EXPECT_EQ(denied.exit_code(), kExitUserError);
  EXPECT_THAT(denied.what(), ::testing::HasSubstr("job.umask"));
}

// A lost rank has another reason than one that hangs or issues other collectives, since only the latter needs
// investigation.
TEST(FailureTest, TimeoutsAndMismatchesHaveSeparateReasons) {
  EXPECT_EQ(failure_of([] { throw comm::PeerLost("tp all_reduce: connection closed by peer"); }).reason(), "PEER_LOST");
  for (const char* words : {"rank 1 of the group took no part within 3000 ms", "Timed out waiting 3000ms for recv",
                            "WorkNCCL(SeqNum=3) ran for 3001 milliseconds before timing out."}) {
    const Failure failure = failure_of([words] { throw comm::PeerLost(words); });
    EXPECT_EQ(failure.reason(), kCollectiveTimeout) << words;
    EXPECT_EQ(failure.exit_code(), kExitPeerLost);
  }
  const Failure other =
      failure_of([] { TORCH_CHECK_VALUE(false, "rank 0 calls a but rank 1 calls b", comm::kNotTheSame); });
  EXPECT_EQ(other.reason(), kCollectiveMismatch);
  EXPECT_EQ(other.exit_code(), kExitInternal);
}

// Breaks as NCCL's abort does: operations in flight are cut short.
bool cut_something() { return true; }

// The watches of the ranks of one attempt, over a real store, and a record of what they did.
class Attempt {
 public:
  struct Setting {
    milliseconds timeout{60'000};
    std::function<bool()> breaks = cut_something;
    int absent = 0;  // The last ranks of the world, which never join.
    std::function<void()> records = {};
    std::function<void()> shows = {};
    milliseconds stacks_timeout{3'000};
    milliseconds word_timeout{20};
  };

  explicit Attempt(int world) : Attempt(world, Setting()) {}
  Attempt(int world, const Setting& setting) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener, 16), 0);
    socklen_t length = sizeof(address);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    for (int rank = 0; rank < world - setting.absent; ++rank) {
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
                              .expect_broken = [&own] { own.expects_broken = true; },
                              .record =
                                  [recorded = own.recorded, seen = own.broken_seen, records = setting.records] {
                                    if (records) records();
                                    recorded->set_value(seen.wait_for(milliseconds(0)) != std::future_status::ready);
                                  },
                              .show_stacks = setting.shows,
                              .stacks_timeout = setting.stacks_timeout,
                              .word_timeout = setting.word_timeout,
                              .break_connections =
                                  [broken = own.broken, breaks = setting.breaks] {
                                    broken->set_value();
                                    return breaks();
                                  },
                              .leave = [&own](const Failure& failure) { own.left.set_value(failure.what()); },
                              .notice_timeout = setting.timeout});
    }
  }

  FailureWatch& watch(int rank) { return *ranks_[rank]->watch; }
  void end_watch(int rank) { ranks_[rank]->watch.reset(); }
  bool is_broken(int rank, milliseconds within) {
    return ranks_[rank]->broken_seen.wait_for(within) == std::future_status::ready;
  }
  // Returns whether the rank recorded its collectives before its connections were broken.
  bool recorded_first(int rank) {
    return ranks_[rank]->recorded_seen.wait_for(milliseconds(5'000)) == std::future_status::ready &&
           ranks_[rank]->recorded_seen.get();
  }
  bool expects_broken(int rank) const { return ranks_[rank]->expects_broken; }
  std::string left_with(int rank) { return ranks_[rank]->left.get_future().get(); }

 private:
  struct Rank {
    // Shared with the thread that breaks the connections, which may outlive the rank.
    std::shared_ptr<std::promise<void>> broken = std::make_shared<std::promise<void>>();
    std::shared_future<void> broken_seen = broken->get_future().share();
    std::shared_ptr<std::promise<bool>> recorded = std::make_shared<std::promise<bool>>();
    std::shared_future<bool> recorded_seen = recorded->get_future().share();
    std::atomic<bool> expects_broken = false;
    std::promise<std::string> left;
    std::unique_ptr<FailureWatch> watch;
  };
  c10::intrusive_ptr<c10d::Store> server_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

constexpr milliseconds kSoon(5'000);
const Failure kNoMemory(kExitOutOfMemory, "OUT_OF_MEMORY", "no memory for 3 GiB");
const Failure kLost(kExitPeerLost, "PEER_LOST", "tp all_reduce among ranks 1, 2: connection closed");

// A rank that fails breaks all connections. The other ranks end with its number and its reason.
TEST(FailureWatchTest, TheFirstReasonReachesEveryRank) {
  for (const int culprit : {0, 1}) {
    Attempt attempt(3);
    const Failure own = attempt.watch(culprit).failed(kNoMemory);
    EXPECT_EQ(own.exit_code(), kExitOutOfMemory);
    EXPECT_STREQ(own.what(), kNoMemory.what());
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(attempt.is_broken(rank, kSoon)) << rank;
      if (rank == culprit) continue;
      const Failure reported = attempt.watch(rank).failed(kLost);
      EXPECT_EQ(reported.exit_code(), kExitPeerLost);
      EXPECT_EQ(reported.what(), std::string(kLost.what()) + "; the first to fail was rank " + std::to_string(culprit) +
                                     ": OUT_OF_MEMORY: no memory for 3 GiB");
    }
  }
}

// A rank whose connections another's failure has broken computes with the results of an aborted kernel, so its errors
// are effects.
TEST(FailureWatchTest, ErrorsAfterAnAbortAreNotTheCause) {
  Attempt attempt(2);
  attempt.watch(0).failed(kNoMemory);
  ASSERT_TRUE(attempt.is_broken(1, kSoon));
  const Failure after = attempt.watch(1).failed(Failure(kExitUserError, "NONFINITE_LOSS", "loss nan"));
  EXPECT_EQ(after.exit_code(), kExitPeerLost);
  EXPECT_EQ(std::string(after.what()),
            "NONFINITE_LOSS: loss nan; the first to fail was rank 0: OUT_OF_MEMORY: no memory for 3 GiB");
}

// An error that all ranks have is each rank's own, and so is one that no abort can cause.
TEST(FailureWatchTest, IndependentFailuresKeepTheirReason) {
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

// Over Gloo no operation is cut short before the other rank leaves, so an error until then has its own cause.
TEST(FailureWatchTest, WithoutAnAbortErrorsKeepTheirReason) {
  Attempt attempt(2, {.breaks = [] { return false; }});
  attempt.watch(0).failed(kNoMemory);
  ASSERT_TRUE(attempt.is_broken(1, kSoon));
  const Failure own = attempt.watch(1).failed(Failure(kExitUserError, "NONFINITE_LOSS", "loss nan"));
  EXPECT_EQ(own.exit_code(), kExitUserError);
  EXPECT_STREQ(own.what(), "loss nan");
}

// NCCL's abort may hang: the failed rank still reports, and a rank that does not notice is ended in time.
TEST(FailureWatchTest, HangingAbortDelaysNoRank) {
  std::promise<void> end;
  const auto breaks = [ended = end.get_future().share()] {
    ended.wait();
    return true;
  };
  Attempt attempt(2, {.timeout = milliseconds(50), .breaks = breaks});
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(attempt.watch(1).failed(kNoMemory).reason(), "OUT_OF_MEMORY");
  EXPECT_TRUE(attempt.is_broken(1, milliseconds(0)));
  EXPECT_TRUE(attempt.expects_broken(1)) << "otherwise a breaking group could end the process first";
  EXPECT_EQ(attempt.left_with(0), "the attempt failed first on rank 1: OUT_OF_MEMORY: no memory for 3 GiB");
  EXPECT_FALSE(attempt.expects_broken(0)) << "it has no failure itself";
  EXPECT_LT(std::chrono::steady_clock::now() - began, kSoon);
  end.set_value();
}

// An abort that throws ends no rank and does not hide the first reason.
TEST(FailureWatchTest, FailingAbortHidesNoReason) {
  Attempt attempt(2, {.breaks = []() -> bool { throw std::runtime_error("no abort"); }});
  EXPECT_STREQ(attempt.watch(0).failed(kNoMemory).what(), kNoMemory.what());
  ASSERT_TRUE(attempt.is_broken(1, kSoon));
  EXPECT_EQ(attempt.watch(1).failed(kLost).exit_code(), kExitPeerLost);
}

// All ranks record their collectives: the one that failed and those that learn of it.
TEST(FailureWatchTest, RanksRecordBeforeTheirConnectionsBreak) {
  Attempt attempt(3);
  attempt.watch(1).failed(kNoMemory);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(attempt.recorded_first(rank)) << rank;
}

// If one rank hangs, all ranks show their stacks before one leaves. If a rank is lost, they do not.
TEST(FailureWatchTest, ShowsStacksOnlyIfARankHangs) {
  const Failure stuck(kExitPeerLost, kCollectiveTimeout, "tp all_reduce: took no part within 3 s");
  for (const bool is_stuck : {true, false}) {
    const auto shown = std::make_shared<std::atomic<int>>(0);
    Attempt attempt(3, {.shows = [shown] { ++*shown; }});
    attempt.watch(1).failed(is_stuck ? stuck : kLost);
    for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(attempt.recorded_first(rank)) << rank;
    EXPECT_EQ(*shown, is_stuck ? 3 : 0);
  }
}

// A stopped rank shows no stacks, so the others wait less for it than for one that has begun to show them.
TEST(FailureWatchTest, DoesNotWaitForRanksThatShowNoStacks) {
  const Failure stuck(kExitPeerLost, kCollectiveTimeout, "tp all_reduce: took no part within 3 s");
  Attempt attempt(3, {.absent = 1, .shows = [] {}, .stacks_timeout = std::chrono::hours(1)});
  attempt.watch(1).failed(stuck);
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(attempt.recorded_first(rank)) << rank;
}

// Gloo closes the connections of a rank that timed out before that rank can report it. So a rank whose connection
// closes waits for the reason.
TEST(FailureWatchTest, BrokenConnectionWaitsForTheReason) {
  const Failure stuck(kExitPeerLost, kCollectiveTimeout, "tp all_reduce: took no part within 3 s");
  const auto shown = std::make_shared<std::atomic<int>>(0);
  Attempt attempt(3, {.shows = [shown] { ++*shown; }, .word_timeout = std::chrono::hours(1)});
  std::future<Failure> lost = std::async(std::launch::async, [&] { return attempt.watch(2).failed(kLost); });
  while (!attempt.expects_broken(2)) std::this_thread::yield();  // Until it has failed.
  attempt.watch(1).failed(stuck);
  EXPECT_STREQ(
      lost.get().what(),
      "tp all_reduce among ranks 1, 2: connection closed; the first to fail was rank 1: COLLECTIVE_TIMEOUT: tp "
      "all_reduce: took no part within 3 s");
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(attempt.recorded_first(rank)) << rank;
  EXPECT_EQ(*shown, 3);
}

// A failure on another library's thread (Gloo's) reaches the others like any other, and then ends this rank, once.
TEST(FailureWatchTest, FailureOnALibrarysThreadEndsItsRank) {
  const Failure differs(kExitInternal, kCollectiveMismatch, "another rank sends more");
  const auto shown = std::make_shared<std::atomic<int>>(0);
  Attempt attempt(3, {.shows = [shown] { ++*shown; }});
  attempt.watch(1).fail_and_leave()(differs);
  EXPECT_EQ(attempt.left_with(1), differs.what());
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(attempt.recorded_first(rank)) << rank;
  EXPECT_EQ(*shown, 3);
  EXPECT_STREQ(attempt.watch(0).failed(kLost).what(),
               "tp all_reduce among ranks 1, 2: connection closed; the first to fail was rank 1: COLLECTIVE_MISMATCH: "
               "another rank sends more");
}

// A disk that never answers blocks no rank.
TEST(FailureWatchTest, HangingRecordDelaysNoRank) {
  std::promise<void> end;
  Attempt attempt(2, {.timeout = milliseconds(50), .records = [ended = end.get_future().share()] { ended.wait(); }});
  const auto began = std::chrono::steady_clock::now();
  EXPECT_STREQ(attempt.watch(1).failed(kNoMemory).what(), kNoMemory.what());
  EXPECT_EQ(attempt.left_with(0), "the attempt failed first on rank 1: OUT_OF_MEMORY: no memory for 3 GiB");
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(10'000));
  end.set_value();
}

// The store ends with rank 0. So rank 0 waits a moment until the others have read the reason; it does not wait for
// itself.
TEST(FailureWatchTest, RankZeroWaitsForEveryOtherReader) {
  Attempt attempt(3, {.absent = 1});
  const auto began = std::chrono::steady_clock::now();
  attempt.watch(0).failed(kNoMemory);
  EXPECT_GT(std::chrono::steady_clock::now() - began, milliseconds(700)) << "rank 2 has not read";
}

// A rank that does not notice the failure is ended, with the reason.
TEST(FailureWatchTest, RanksThatDoNotNoticeAreEnded) {
  Attempt attempt(2, {.timeout = milliseconds(50)});
  attempt.watch(1).failed(kNoMemory);
  EXPECT_EQ(attempt.left_with(0), "the attempt failed first on rank 1: OUT_OF_MEMORY: no memory for 3 GiB");
}

// A rank that ended well is not disturbed.
TEST(FailureWatchTest, AnEndedWatchDoesNothing) {
  Attempt attempt(2, {.timeout = milliseconds(1)});
  attempt.end_watch(0);
  attempt.watch(1).failed(kNoMemory);
  EXPECT_FALSE(attempt.is_broken(0, milliseconds(200)));
}

}  // namespace
}  // namespace titan::runtime
