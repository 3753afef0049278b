// Tests how ranks agree: reports are joined along a tree in rank order, and a missing rank is named to all, no matter
// which rank waited for it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/io/storage/faulty_files.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"

namespace titan::checkpoint::testing {
namespace {

using storage::posix_files;
using ::testing::HasSubstr;

// Every rank but the first has exactly one parent, and a parent joins neighbouring ranks.
TEST(ReportTreeTest, EachRankHasOneParent) {
  for (const int fan_out : {2, 3, 32}) {
    for (const int world : {1, 2, 3, 4, 5, 31, 32, 33, 34, 65, 1000, 1057, 10000}) {
      std::vector<int> parents(static_cast<size_t>(world), 0);
      for (int rank = 0; rank < world; ++rank) {
        const Branch own = branch_of(rank, world, fan_out);
        ASSERT_EQ(own.begin, rank);
        const std::vector<Branch> below = branches(own, fan_out);
        ASSERT_LE(below.size(), static_cast<size_t>(fan_out));
        int next = rank + 1;
        for (const Branch& branch : below) {
          ASSERT_EQ(branch.begin, next);
          ASSERT_GT(branch.end, branch.begin);
          ASSERT_EQ(branch_of(branch.begin, world, fan_out), branch);
          ASSERT_LE(height(branch, fan_out), height(below.front(), fan_out));
          next = branch.end;
          ++parents[static_cast<size_t>(branch.begin)];
        }
        ASSERT_EQ(next, own.end);
      }
      for (int rank = 0; rank < world; ++rank) ASSERT_EQ(parents[static_cast<size_t>(rank)], rank == 0 ? 0 : 1);
      EXPECT_LE(height({0, world}, fan_out), std::ceil(std::log(world) / std::log(fan_out)) + 1) << world;
    }
  }
  EXPECT_EQ(height({0, 33}, 32), 1) << "a small job's ranks report to rank 0";
}

TEST(ExchangeTest, ReportsAreInRankOrderAndStoreStaysSmall) {
  constexpr int kWorld = 12;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::atomic<bool> stop{false};
  const auto list = [](const std::vector<std::string>& reports) { return absl::StrJoin(reports, ","); };
  std::vector<std::string> received(kWorld);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      ReportExchange exchange(store, rank, kWorld, {.timeout = absl::Seconds(20)}, &stop, 2);
      for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(exchange.share("alike", "long").ok());
        const auto all = exchange.gather(absl::StrCat("topic/", i), absl::StrCat(rank), list);
        ASSERT_TRUE(all.ok()) << all.status();
        const auto result = exchange.broadcast(absl::StrCat("verdict/", i), *all);
        ASSERT_TRUE(result.ok()) << result.status();
        received[static_cast<size_t>(rank)] = *result;
        if (rank == 0) {
          EXPECT_EQ(*exchange.shared("alike"), "long");
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : received) EXPECT_EQ(result, "0,1,2,3,4,5,6,7,8,9,10,11");
  EXPECT_LE(store->getNumKeys(), 4) << "the last verdict, the shared value, and its marker";
}

// The exchange works over the store of real jobs and waits for a rank that arrives late.
TEST(ExchangeTest, WaitsForALateRankOverTcp) {
  constexpr int kWorld = 36;  // Two levels.
  c10d::TCPStoreOptions options{.port = 0, .isServer = true, .waitWorkers = false};
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  options = {.port = server->getPort(), .waitWorkers = false};
  const auto client = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const std::atomic<bool> stop{false};
  const auto count = [](const std::vector<std::string>& reports) {
    int ranks = 0;
    for (const std::string& one : reports) ranks += std::stoi(one);
    return absl::StrCat(ranks);
  };
  std::vector<std::string> received(kWorld);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      ReportExchange exchange(rank == 0 ? server : client, rank, kWorld, {.timeout = absl::Minutes(2)}, &stop);
      for (int i = 0; i < 3; ++i) {
        if (rank == kWorld - 1) absl::SleepFor(absl::Milliseconds(50));
        const auto all = exchange.gather(absl::StrCat("topic/", i), "1", count);
        ASSERT_TRUE(all.ok()) << all.status();
        const auto result = exchange.broadcast(absl::StrCat("verdict/", i), *all);
        ASSERT_TRUE(result.ok()) << result.status();
        received[static_cast<size_t>(rank)] += *result + " ";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : received) EXPECT_EQ(result, "36 36 36 ");
}

class DeepTreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ = ::testing::TempDir() + "/deep." + std::to_string(::getpid());
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
    output_rows = 20;
  }
  void TearDown() override {
    output_rows = 650;
    posix_files().remove_folder(dump_).IgnoreError();
  }
  // With a fan-out of two, 0 joins 1 and 5, 1 joins 2 and 4, 2 joins 3, 5 joins 6 and 8, and 6 joins 7.
  Attempt::Options options(int attempt, Split split = Split::kRows) {
    return {.dump = dump_, .world = 9, .split = split, .attempt = attempt, .fan_out = 2};
  }
  std::string dump_;
};

TEST_F(DeepTreeTest, SavesAndLoads) {
  int attempt = 0;
  for (const Split split : {Split::kRows, Split::kColumns, Split::kReplicated}) {
    const int64_t saved = ++attempt;
    Attempt job(options(attempt, split));
    ASSERT_TRUE(job.save(saved).ok());
    const auto loaded = Attempt(options(++attempt)).load();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->step, saved);
    ASSERT_EQ(loaded->per_rank.size(), 9u);
    for (int rank = 0; rank < 9; ++rank) EXPECT_EQ(loaded->per_rank[static_cast<size_t>(rank)]["rank"], rank);
  }
}

TEST_F(DeepTreeTest, LeafFailureFailsTheSaveOnAllRanks) {
  std::atomic<bool> full{true};
  storage::FaultyFiles disk([&](const storage::FileOperation& operation) {
    return storage::Fault{full && operation.kind == storage::FileOperation::Kind::kAppend
                              ? absl::ResourceExhaustedError("no space left")
                              : absl::OkStatus()};
  });
  Attempt::Options some = options(1, Split::kColumns);
  some.rank_files = [&](int rank) -> storage::Files* { return rank == 7 ? &disk : nullptr; };
  Attempt job(some);
  ASSERT_TRUE(job.save(1).ok());
  const auto failed = job.events("checkpoint_failed");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].members["reason"].get<std::string>(), HasSubstr("rank 7: no space left"));
  EXPECT_FALSE(posix_files().exists(dump_ + "/checkpoint/step-1")) << "all removed their shards";
  full = false;
  ASSERT_TRUE(job.save(2).ok());
}

// Returns the other ranks' statuses of a save or a load after one rank is gone.
std::vector<absl::Status> statuses_without(Attempt::Options some, int lost, bool load) {
  some.dump += load ? "/load" : "/save";
  some.peer_silence = absl::Seconds(2);
  Attempt job(some);
  std::vector<absl::Status> statuses = {job.save(1)};
  job.end(lost);
  statuses.resize(9);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 9; ++rank) {
    if (rank == lost) continue;
    threads.emplace_back([&, rank] {
      std::vector<Slice> slices = make_slices(Split::kRows, rank, 9, 3);
      Checkpointer& own = job.rank(rank);
      statuses[static_cast<size_t>(rank)] = load ? own.load(slices).status() : own.save(3, slices, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  statuses.erase(statuses.begin() + lost);
  return statuses;
}

// Only rank 2 waits for rank 3, and only rank 5 waits for rank 6.
TEST_F(DeepTreeTest, LostRankIsReportedToAllRanks) {
  std::vector<absl::Status> of_load, of_save;
  std::thread loading([&] { of_load = statuses_without(options(1), 3, true); });
  of_save = statuses_without(options(1), 6, false);
  loading.join();
  for (const absl::Status& status : of_load) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 has shown no sign of life"));
  }
  for (const absl::Status& status : of_save) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 6 has shown no sign of life"));
  }
}

}  // namespace
}  // namespace titan::checkpoint::testing
