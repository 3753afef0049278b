// Measures what a scheduling cycle costs the controller's core: 10,000 nodes of 8 devices, all taken by jobs of 8
// ranks, and 1,000 queued jobs. Each round submits one job, or ends one job and starts another, without store and
// sockets. Times of rounds are CPU times.
//
//   build/release/tests/core_cycle
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <deque>
#include <string>
#include <utility>

#include "tests/bench/bench_core.h"

namespace titan::core {
namespace {

constexpr int kNodes = 10'000;
constexpr int kDevices = 8;
constexpr int kWaiting = 1'000;
constexpr int kRounds = 50;

class Cluster : public BenchCore {
 public:
  Cluster() {
    for (int i = 0; i < kNodes; ++i) register_node(i);
  }

  void submit(int ranks) {
    CreateJob job;
    job.request = job.fingerprint = ++jobs_;
    job.uid = absl::StrCat("uid", jobs_);
    job.spec.job_id = absl::StrCat("job", jobs_);
    job.spec.dump_folder = absl::StrCat("/dump/", jobs_);
    job.spec.device = "cuda";
    job.spec.ranks = ranks;
    take(std::move(job));
  }

  // Ends the oldest running job: all its ranks exit.
  void end_one() {
    const auto [session, attempt] = std::move(running_.front());
    running_.pop_front();
    AttemptReport report{.attempt = attempt, .phase = PartPhase::kEnded};
    for (int rank = 0; rank < kDevices; ++rank) report.exits.emplace_back().exit.rank = rank;
    take(MessageReceived{absl::StrCat("node", session - 1), session, std::move(report)});
  }

  size_t running() const { return running_.size(); }

 private:
  void register_node(int i) {
    OpenSession open = hello(i, kDevices);
    open.hello.labels["row"] = absl::StrCat(i / 1024);
    open.hello.labels["rack"] = absl::StrCat(i / 32);
    take(std::move(open));
  }

  void take(Input input) override {
    std::deque<Effects> todo;
    todo.push_back(core_.step(std::move(input), now_));
    while (!todo.empty()) {
      const Effects effects = std::move(todo.front());
      todo.pop_front();
      note(effects.now);
      for (const Change& change : effects.changes) {
        note(change.then);
        if (change.token != 0) todo.push_back(core_.step(Durable{change.token, absl::OkStatus()}, now_));
      }
    }
  }
  void note(const Release& release) {
    for (const Send& send : release.sends) {
      const auto* const prepare = std::get_if<Prepare>(&send.command);
      if (prepare != nullptr) running_.emplace_back(send.session, prepare->attempt);
    }
  }

  int jobs_ = 0;
  std::deque<std::pair<SessionId, AttemptKey>> running_;
};

template <typename Round>
void time_rounds(const char* what, const Round& round) {
  double total = 0, longest = 0;
  for (int i = 0; i < kRounds; ++i) {
    const std::clock_t begin = std::clock();
    round();
    const double ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    total += ms;
    longest = std::max(longest, ms);
  }
  std::printf("%-40s mean %8.3f ms, longest %8.3f ms\n", what, total / kRounds, longest);
}

void run() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto begin = std::chrono::steady_clock::now();
  Cluster cluster;
  const std::chrono::duration<double> registered = std::chrono::steady_clock::now() - begin;
  std::printf("%d nodes registered in %.2f s\n", kNodes, registered.count());
  while (cluster.running() < kNodes) {  // Submits in batches, as if the jobs had arrived over time.
    for (int i = 0; i < 1000; ++i) cluster.submit(kDevices);
    cluster.tick();
  }
  for (int i = 0; i < kWaiting; ++i) cluster.submit(kDevices);
  for (int i = 0; i < 10; ++i) cluster.tick();
  time_rounds("a tick without news", [&] { cluster.tick(); });
  time_rounds("a job is submitted, and a tick", [&] {
    cluster.submit(kDevices);
    cluster.tick();
  });
  time_rounds("a job ends and the next one starts", [&] { cluster.end_one(); });
}

}  // namespace
}  // namespace titan::core

int main() { titan::core::run(); }
