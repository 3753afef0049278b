// Whole clusters of real cores under random faults. A failure names its seed: TITAN_SIMULATION_SEED=N replays it, and
// TITAN_SIMULATION_TRACE=1 prints its history. The test runs 5,000 seeds, simulation_test_all ten thousand,
// TITAN_LONG=1 a hundred thousand, and TITAN_SIMULATION_SEEDS any number. It stops at the tenth failure, or at the
// number in TITAN_SIMULATION_FAILURES.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "controller/core/core.h"
#include "gtest/gtest.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {
namespace {

constexpr int64_t kThreads = 2;
constexpr int64_t kSeedsForAllHits = 5000;
constexpr int64_t kSeedsTwice = 50;
constexpr int64_t kCrashPoints = 100;  // Approximately.
constexpr int64_t kRare = 20;
constexpr int64_t kSeedsForAllKinds = 500;
constexpr int kManyNodes = 20;

int64_t from_environment(const char* key, int64_t default_value) {
  const char* text = getenv(key);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : default_value;
}

double seconds_since(clock_t begin) { return static_cast<double>(clock() - begin) / CLOCKS_PER_SEC; }

struct Sum {
  std::mutex mutex;
  std::map<Fault, int64_t> faults;
  Hits hits;
  std::map<std::string, int64_t> decisions;
  int64_t events = 0;
  absl::Duration simulated;
  std::map<int64_t, std::string> failures;  // By seed.
};

void add(Sum& sum, int64_t seed, const Outcome& outcome) {
  const std::lock_guard<std::mutex> lock(sum.mutex);
  for (const auto& [fault, count] : outcome.faults) sum.faults[fault] += count;
  for (const auto& [what, count] : outcome.hits) sum.hits[what] += count;
  for (const auto& [what, count] : outcome.decisions) sum.decisions[what] += count;
  sum.events += outcome.events;
  sum.simulated += outcome.simulated;
  if (!outcome.violations.empty()) sum.failures[seed] = absl::StrJoin(outcome.violations, "\n  ");
}

// Prints how often each fault struck an attempt in each phase.
void print(const Sum& sum) {
  std::cout << absl::StrFormat("%-24s %8s", "fault", "struck");
  for (int phase = 0; phase < static_cast<int>(Phase::kCount); ++phase) {
    std::cout << absl::StrFormat(" %10s", name(static_cast<Phase>(phase)));
  }
  std::cout << "\n";
  for (const auto& [fault, count] : sum.faults) {
    std::cout << absl::StrFormat("%-24s %8d", name(fault), count);
    for (int phase = 0; phase < static_cast<int>(Phase::kCount); ++phase) {
      const auto hits = sum.hits.find({fault, static_cast<Phase>(phase)});
      std::cout << absl::StrFormat(" %10d", hits == sum.hits.end() ? 0 : hits->second);
    }
    std::cout << "\n";
  }
}

// Checks that each of these decisions occurs in some history; otherwise the histories prove nothing about it.
void expect_all_decisions(const Sum& sum) {
  for (const char* what :
       {"AttemptAdopted", "AttemptHung", "NodeCordoned", "NodeDeleted", "NodeLost", "NodeUnreachable",
        "PrepareTimedOut", "RankUnkillable", "StopTimedOut", "TimeLimitReached"}) {
    const auto seen = sum.decisions.find(what);
    std::cout << absl::StrFormat("%-24s %8d\n", what, seen == sum.decisions.end() ? 0 : seen->second);
    EXPECT_TRUE(seen != sum.decisions.end()) << what << " in no history";
  }
}

void expect_all_hits(const Sum& sum) {
  for (int fault = 0; fault < static_cast<int>(Fault::kCount); ++fault) {
    for (int phase = 0; phase < static_cast<int>(Phase::kCount); ++phase) {
      const std::pair what{static_cast<Fault>(fault), static_cast<Phase>(phase)};
      if (!can_inject(what.first, what.second)) continue;
      EXPECT_GT(sum.hits.count(what), 0) << name(what.first) << " never struck in phase " << name(what.second);
    }
  }
}

// Runs all seeds on two threads.
void for_each_seed(const std::vector<int64_t>& seeds, const std::function<void(int64_t)>& run) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < seeds.size(); at = next++) run(seeds[at]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns the seeds with many nodes first, so that no long one is left for a single thread at the end.
std::vector<int64_t> long_seeds_first(int64_t first, int64_t count) {
  std::vector<int64_t> seeds(static_cast<size_t>(count));
  std::iota(seeds.begin(), seeds.end(), first);
  std::stable_partition(seeds.begin(), seeds.end(),
                        [](int64_t seed) { return size_of(static_cast<uint64_t>(seed)).nodes >= kManyNodes; });
  return seeds;
}

TEST(SimulationTest, RulesHoldUnderRandomFaults) {
  const int64_t many = getenv("TITAN_LONG") != nullptr ? 100'000 : kSeedsForAllHits;
  const int64_t only = from_environment("TITAN_SIMULATION_SEED", 0);
  const int64_t first = only != 0 ? only : from_environment("TITAN_SIMULATION_FIRST", 1);
  const int64_t count = only != 0 ? 1 : from_environment("TITAN_SIMULATION_SEEDS", many);
  const int64_t max_failures = from_environment("TITAN_SIMULATION_FAILURES", 10);
  const clock_t begin = clock();
  Sum sum;
  std::atomic<int64_t> failed = 0;
  for_each_seed(long_seeds_first(first, count), [&](int64_t seed) {
    if (failed >= max_failures) return;
    const Outcome outcome = Scenario(static_cast<uint64_t>(seed), size_of(static_cast<uint64_t>(seed))).run();
    if (!outcome.violations.empty()) ++failed;
    if (!outcome.violations.empty())
      std::cout << absl::StrFormat("seed %d: %s\n", seed, outcome.violations.front()) << std::flush;
    add(sum, seed, outcome);
  });
  for (const auto& [seed, what] : sum.failures) ADD_FAILURE() << "seed " << seed << ": " << what;
  std::cout << count << " seeds from " << first << ": " << sum.events << " events, "
            << absl::FormatDuration(sum.simulated) << " simulated in " << seconds_since(begin) << " CPU s\n";
  print(sum);
  if (count < kSeedsForAllHits) return;
  expect_all_hits(sum);
  expect_all_decisions(sum);
}

// A seed gives the same history again: nothing depends on addresses, threads or earlier runs.
TEST(SimulationTest, SeedsAreReproducible) {
  if (getenv("TITAN_SIMULATION_SEED") != nullptr) GTEST_SKIP() << "one seed, run once";
  const auto run = [](int64_t seed) {
    return Scenario(static_cast<uint64_t>(seed), size_of(static_cast<uint64_t>(seed))).run();
  };
  std::mutex mutex;
  std::set<uint64_t> digests;
  const std::vector<int64_t> seeds = long_seeds_first(1, kSeedsTwice);
  for_each_seed(seeds, [&](int64_t seed) {
    const Outcome first = run(seed), second = run(seed);
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
    EXPECT_EQ(first.digest, second.digest) << "seed " << seed;
    digests.insert(first.digest);
  });
  EXPECT_EQ(digests.size(), seeds.size()) << "different seeds have different histories";
}

// Returns every kind of record that the core writes.
std::set<std::string> all_kinds() {
  std::set<std::string> kinds = {"spec", "event/job", "event/node", "failed_log", "diagnosis"};
  for (const std::string& prefix : core::Core::loaded_prefixes()) kinds.insert(prefix.substr(0, prefix.size() - 1));
  return kinds;
}

// Runs a history with many requests, so that all kinds of records occur.
Outcome run_and_crash_after(int64_t seed, size_t transactions) {
  Size size;
  size.jobs = 16;
  Scenario scenario(static_cast<uint64_t>(seed), size);
  scenario.crash_after(transactions);
  return scenario.run();
}

// Returns the transactions to crash after: every n-th, and each that writes a rare kind.
std::vector<int64_t> crash_points(const std::vector<std::set<std::string>>& transactions) {
  std::map<std::string, int64_t> written;
  for (const std::set<std::string>& kinds : transactions) {
    for (const std::string& kind : kinds) ++written[kind];
  }
  const auto crashes = static_cast<size_t>(from_environment("TITAN_SIMULATION_CRASHES", kCrashPoints));
  const size_t every = std::max<size_t>(1, transactions.size() / crashes);
  std::vector<int64_t> points;
  for (size_t i = 0; i < transactions.size(); ++i) {
    const bool is_rare = std::any_of(transactions[i].begin(), transactions[i].end(),
                                     [&](const std::string& kind) { return written[kind] <= kRare; });
    if (is_rare || i % every == 0) points.push_back(static_cast<int64_t>(i) + 1);
  }
  return points;
}

// Runs a busy history once for each point at which the controller dies: the transaction is durable, but nobody knows
// its result.
TEST(SimulationTest, RulesHoldAfterACrashAtEachTransaction) {
  if (getenv("TITAN_SIMULATION_SEED") != nullptr) GTEST_SKIP() << "one seed, run once";
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  int64_t seed = 0;
  std::vector<std::set<std::string>> transactions;
  std::set<std::string> written;
  while (written != all_kinds() && ++seed <= kSeedsForAllKinds) {
    transactions = run_and_crash_after(seed, kNever).transactions;
    written.clear();
    for (const std::set<std::string>& kinds : transactions) written.insert(kinds.begin(), kinds.end());
  }
  ASSERT_EQ(written, all_kinds()) << "no seed writes all kinds of records";
  const clock_t begin = clock();
  std::mutex mutex;
  std::map<std::string, int64_t> hit;
  const std::vector<int64_t> points = crash_points(transactions);
  for_each_seed(points, [&](int64_t point) {
    const Outcome outcome = run_and_crash_after(seed, static_cast<size_t>(point));
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_TRUE(outcome.violations.empty()) << "seed " << seed << ", a crash after transaction " << point << ": "
                                            << absl::StrJoin(outcome.violations, "\n  ");
    for (const std::string& kind : outcome.transactions[static_cast<size_t>(point) - 1]) ++hit[kind];
  });
  std::cout << "seed " << seed << ", " << points.size() << " crashes in " << transactions.size() << " transactions, "
            << seconds_since(begin) << " CPU s\n";
  for (const std::string& kind : all_kinds()) {
    std::cout << absl::StrFormat("%-12s %6d\n", kind, hit[kind]);
    EXPECT_GT(hit[kind], 0) << "no crash after a transaction that writes " << kind;
  }
}

// Two jobs of a quarter of ten thousand nodes each, together with small ones; the controller restarts in between.
TEST(SimulationTest, TenThousandNodes) {
  if (getenv("TITAN_SIMULATION_SEED") != nullptr) GTEST_SKIP() << "one small seed";
  const Size size{static_cast<int>(from_environment("TITAN_SIMULATION_NODES", 10'000)), 2, 30, absl::Seconds(15), 0.6};
  const clock_t begin = clock();
  std::mutex mutex;
  const int64_t first = from_environment("TITAN_SIMULATION_LARGE_FIRST", 3);  // Seed 2 costs as much as three others.
  for_each_seed(long_seeds_first(first, from_environment("TITAN_SIMULATION_LARGE_SEEDS", 1)), [&](int64_t seed) {
    const Outcome outcome = Scenario(static_cast<uint64_t>(seed), size).run();
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << absl::StrJoin(outcome.violations, "\n  ");
    std::cout << "seed " << seed << " with " << size.nodes << " nodes: " << outcome.events << " events, "
              << absl::FormatDuration(outcome.simulated) << " simulated\n";
  });
  std::cout << seconds_since(begin) << " CPU s\n";
}

}  // namespace
}  // namespace titan::simulation
