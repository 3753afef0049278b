// Measures what a placement costs at 10,000 nodes of 8 devices: alone, in crowds, large, queued after a large job, and
// with a long queue. Counts add_job, cycle and release together, without store, messages and attempts.
//
//   build/release/tests/scheduler_bench
#include <benchmark/benchmark.h>

#include <deque>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controller/scheduler/scheduler.h"

namespace titan::scheduler {
namespace {

constexpr int kNodes = 10'000;
constexpr int kDevices = 8;
constexpr int kNodesPerRack = 32;
const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

class Cluster {
 public:
  explicit Cluster(int nodes = kNodes) {
    for (int i = 0; i < nodes; ++i) {
      scheduler_.set_node(
          {absl::StrCat("node", i), "cuda", kDevices, absl::StrCat("row", i / 1024, "/rack", i / kNodesPerRack)});
    }
  }

  void submit(int ranks, int unit = 1) {
    PendingJob job;
    job.order = ++submitted_;
    job.uid = job.name = absl::StrCat("job", submitted_);
    job.device = "cuda";
    job.ranks = ranks;
    job.unit = unit;
    job.time_limit = absl::Hours(1);
    scheduler_.add_job(std::move(job));
  }

  int cycle(int limit = 1000) {
    int placed = 0;
    for (Outcome& outcome : scheduler_.cycle(kNow, {.placements = limit})) {
      if (outcome.runs.empty()) continue;
      int ranks = 0;
      for (const Run& run : outcome.runs) ranks += static_cast<int>(run.devices.size());
      running_.emplace_back(std::move(outcome.uid), ranks);
      ranks_ += ranks;
      ++placed;
    }
    return placed;
  }

  void fill(int ranks, double share) {
    for (int i = 0; i < kNodes * kDevices * share / ranks; ++i) submit(ranks);
    while (cycle() > 0) {
    }
  }

  // Releases a random running job, so that holes are everywhere.
  void release_one() {
    std::swap(running_[random_() % running_.size()], running_.back());
    scheduler_.release(running_.back().first);
    ranks_ -= running_.back().second;
    running_.pop_back();
  }

  int64_t running_ranks() const { return ranks_; }
  std::mt19937& random() { return random_; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  Scheduler scheduler_;
  std::deque<std::pair<std::string, int>> running_;  // Names with their numbers of ranks.
  int64_t ranks_ = 0;
  std::mt19937 random_{1};
  int64_t submitted_ = 0;
};

void report(benchmark::State& state, int64_t placements) {
  state.counters["placements/s"] = benchmark::Counter(static_cast<double>(placements), benchmark::Counter::kIsRate);
}

// Keeps the cluster nine tenths full; in every cycle one job of the given size ends and one arrives.
void one_a_cycle(benchmark::State& state) {
  Cluster cluster;
  const int ranks = static_cast<int>(state.range(0));
  cluster.fill(ranks, 0.9);
  int64_t placed = 0;
  for (auto _ : state) {
    cluster.release_one();
    cluster.submit(ranks);
    placed += cluster.cycle();
  }
  report(state, placed);
}
BENCHMARK(one_a_cycle)->ArgName("ranks")->Arg(1)->Arg(8)->Arg(64)->Unit(benchmark::kMicrosecond);

// Does the same with a thousand such jobs in a cycle.
void crowds(benchmark::State& state) {
  Cluster cluster;
  const int ranks = static_cast<int>(state.range(0));
  cluster.fill(ranks, 0.9);
  int64_t placed = 0;
  for (auto _ : state) {
    for (int i = 0; i < 1000; ++i) cluster.release_one();
    for (int i = 0; i < 1000; ++i) cluster.submit(ranks);
    placed += cluster.cycle();
  }
  report(state, placed);
}
BENCHMARK(crowds)->ArgName("ranks")->Arg(8)->Unit(benchmark::kMillisecond);

// Fills the cluster to four fifths with jobs of 1 to 64 ranks, in units of 1, 2 and 4, so that nodes are partly full.
void mixed(benchmark::State& state) {
  Cluster cluster;
  int64_t placed = 0;
  const auto step = [&] {
    while (cluster.running_ranks() > kNodes * kDevices * 4 / 5) cluster.release_one();
    const int unit = 1 << cluster.random()() % 3;
    cluster.submit(unit * (1 + static_cast<int>(cluster.random()() % 16)), unit);
    placed += cluster.cycle();
  };
  while (cluster.running_ranks() < kNodes * kDevices * 4 / 5) step();
  placed = 0;
  for (auto _ : state) step();
  report(state, placed);
}
BENCHMARK(mixed)->Unit(benchmark::kMicrosecond);

// Places jobs in a full cluster. Arguments: whether a job of 10,000 ranks waits; how many small jobs wait, which end in
// time to run on the large job's reservation; how many small jobs end and arrive in a cycle. The scheduler also makes
// pending reasons.
void behind_a_large_job(benchmark::State& state) {
  Cluster cluster;
  cluster.fill(8, 1);
  for (int i = 0; i < state.range(0); ++i) cluster.submit(10'000, 8);
  for (int i = 0; i < state.range(1); ++i) cluster.submit(8, 8);
  cluster.cycle();
  int64_t placed = 0;
  for (auto _ : state) {
    for (int i = 0; i < state.range(2); ++i) cluster.release_one();
    for (int i = 0; i < state.range(2); ++i) cluster.submit(8, 8);
    placed += cluster.cycle();
  }
  if (state.range(0) > 0 && cluster.scheduler().reservations().empty()) state.SkipWithError("the large job started");
  report(state, placed);
}
BENCHMARK(behind_a_large_job)
    ->ArgNames({"large", "waiting", "at once"})
    ->Args({0, 100'000, 1})
    ->Args({1, 100'000, 1})
    ->Args({1, 100'000, 100})
    ->Unit(benchmark::kMicrosecond);

// Places a gang of 10,000 ranks in an empty cluster and releases it.
void large_gang(benchmark::State& state) {
  Cluster cluster;
  for (auto _ : state) {
    cluster.submit(10'000, 8);
    if (cluster.cycle() != 1) state.SkipWithError("not placed");
    state.PauseTiming();
    cluster.release_one();
    state.ResumeTiming();
  }
}
BENCHMARK(large_gang)->Unit(benchmark::kMillisecond);

// Lets a running gang of 10,000 ranks lose a node; the gang returns to the other nodes and a new one.
void large_gang_recovers(benchmark::State& state) {
  Cluster cluster;
  std::map<std::string, std::vector<int>> reserved;
  for (int i = 0; i < 1249; ++i) reserved[absl::StrCat("node", i)] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (auto _ : state) {
    PendingJob job;
    job.uid = job.name = "gang";
    job.device = "cuda";
    job.ranks = 10'000;
    job.unit = 8;
    job.recovering = true;
    job.reserved = reserved;
    cluster.scheduler().add_job(std::move(job));
    if (cluster.cycle() != 1) state.SkipWithError("not placed");
    state.PauseTiming();
    cluster.release_one();
    state.ResumeTiming();
  }
}
BENCHMARK(large_gang_recovers)->Unit(benchmark::kMillisecond);

// Registers all nodes with an empty scheduler.
void registration(benchmark::State& state) {
  for (auto _ : state) {
    const Cluster cluster;
    benchmark::DoNotOptimize(&cluster);
  }
}
BENCHMARK(registration)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace titan::scheduler

BENCHMARK_MAIN();
