// Measures what a job of 10,000 ranks costs the controller's core when one rank never reaches a collective: each node
// reports its ranks' calls, and all of them are compared. Requests wait for the core's steps, but not for the
// comparison, which runs outside the core's lock. Times are CPU times, without store and sockets.
//
//   build/release/tests/diagnosis_cycle
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/launch.h"
#include "tests/bench/bench_core.h"

namespace titan::core {
namespace {

constexpr int kNodes = 1'250;
constexpr int kDevices = 8;
constexpr int kRanks = kNodes * kDevices;
constexpr int kAbsent = 4'321;  // The rank that never comes.
constexpr int kGroupSize = 8;   // Size of a tensor-parallel group; all ranks form one fsdp group.

double milliseconds_since(std::clock_t begin) {
  return 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// Returns a rank's calls: all ranks made the same ones, except that the absent rank lacks the last call of fsdp.
job::RankFinding found_of(int rank) {
  using rank_protocol::CallState;
  const int calls = job::max_calls(kRanks);
  job::RankFinding found;
  found.flight.rank = rank;
  found.phase = "forward";
  found.alive = true;
  found.stacks = absl::StrCat("thread ", rank, "\n  where_all_are\n");
  const int first = rank - rank % kGroupSize;
  const int of_all = (calls + 1) / 2 - (rank == kAbsent ? 1 : 0);
  found.flight.groups.push_back({"fsdp", absl::StrCat("0-", kRanks - 1), 1, of_all});
  found.flight.groups.push_back(
      {"tp", absl::StrCat(first, "-", first + kGroupSize - 1), static_cast<uint64_t>(2 + first), calls / 2});
  for (int i = 0; i < calls; ++i) {
    if (i % 2 == 0 && i / 2 >= of_all) continue;
    found.flight.calls.push_back({i % 2, i / 2 + 1, i % 2 == 0 ? "all_gather" : "all_reduce", "float", 1 << 20, i / 10,
                                  i % 10, 1000 * i + rank % 1000,
                                  i + 2 < calls ? CallState::kCompleted : CallState::kQueued});
  }
  return found;
}

class Job : public BenchCore {
 public:
  Job() {
    for (int i = 0; i < kNodes; ++i) register_node(i);
    CreateJob job;
    job.request = job.fingerprint = 1;
    job.uid = "uid";
    job.spec.job_id = "job";
    job.spec.dump_folder = "/dump";
    job.spec.device = "cuda";
    job.spec.ranks = kRanks;
    take(std::move(job));
    for (int i = 0; i < 20 && nodes_.empty(); ++i) tick();
    report_all(PartPhase::kPrepared);
    report_all(PartPhase::kStarted);
  }

  void stand_still() {
    const int rank = nodes_.begin()->second.front();
    const RankError error{.error_class = "peer", .reason = "COLLECTIVE_TIMEOUT", .message = "all_gather"};
    send_report(nodes_.begin()->first, RankEvents{.attempt = attempt_, .rank = rank, .lines = {{1, error}}});
    AttemptReport ended{.attempt = attempt_, .phase = PartPhase::kStarted};
    ended.exits.emplace_back().exit = {.rank = rank, .exit_code = rank_protocol::kExitPeerLost};
    send_report(nodes_.begin()->first, std::move(ended));
  }
  void answer() {
    for (const auto& [session, ranks] : nodes_) {
      for (const int rank : ranks) {
        send_report(session, Diagnosis{attempt_, found_of(rank), rank == ranks.back()});
      }
    }
  }
  void print() const {
    std::printf("%d ranks of %d nodes: %d compared in %.1f ms; longest step of the core %.1f ms\nverdict: %s\n", kRanks,
                kNodes, compared_, comparing_, longest_step_, verdict_.c_str());
  }

 private:
  void register_node(int i) {
    OpenSession open = hello(i, kDevices);
    open.hello.diagnoses = true;
    take(std::move(open));
  }
  void report_all(PartPhase phase) {
    for (const auto& [session, ranks] : nodes_) {
      send_report(session, AttemptReport{.attempt = attempt_, .phase = phase, .store_port = 1234});
    }
  }
  void send_report(SessionId session, NodeReport report) {
    take(MessageReceived{absl::StrCat("node", session - 1), session, std::move(report)});
  }

  void take(Input input) override {
    std::deque<Input> todo;
    todo.push_back(std::move(input));
    while (!todo.empty()) {
      const std::clock_t begin = std::clock();
      const Effects effects = core_.step(std::move(todo.front()), now_);
      if (!nodes_.empty()) longest_step_ = std::max(longest_step_, milliseconds_since(begin));
      todo.pop_front();
      note(effects.now);
      for (const Change& change : effects.changes) {
        note(change.then);
        if (change.token != 0) todo.push_back(Durable{change.token, absl::OkStatus()});
      }
      for (const Comparison& wanted : effects.comparisons) todo.push_back(compare(wanted));
    }
  }
  Compared compare(const Comparison& wanted) {
    const std::clock_t begin = std::clock();
    Compared found{wanted.attempt, job::diagnose(*wanted.findings, wanted.title), wanted.findings->stuck};
    comparing_ = milliseconds_since(begin);
    compared_ = static_cast<int>(wanted.findings->ranks.size());
    verdict_ = found.record.verdict;
    return found;
  }
  void note(const Release& release) {
    for (const Send& send : release.sends) {
      const auto* const prepare = std::get_if<Prepare>(&send.command);
      if (prepare == nullptr) continue;
      attempt_ = prepare->attempt;
      nodes_[send.session] = prepare->ranks;
    }
  }

  AttemptKey attempt_;
  std::map<SessionId, std::vector<int>> nodes_;
  double longest_step_ = 0, comparing_ = 0;
  int compared_ = 0;
  std::string verdict_;
};

}  // namespace
}  // namespace titan::core

int main() {
  titan::core::Job job;
  job.stand_still();
  job.answer();
  job.print();
}
