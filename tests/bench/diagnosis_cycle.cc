// What a job of 10,000 ranks costs the controller's core when one rank never comes to a collective: each node says what
// its ranks did, and all of it is compared. The core's steps are what others wait for; the comparison is made beside
// them. CPU times, no store, no sockets.
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
constexpr int kAbsent = 4'321;  // The rank.
constexpr int kGroupSize = 8;   // Of tensor parallelism; all ranks are one group of fsdp.

double milliseconds_since(std::clock_t begin) {
  return 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

void add_group(v1::RankDiagnosis& found, const std::string& name, const std::string& members, uint64_t key,
               int64_t issued) {
  v1::FlightGroup& group = *found.add_groups();
  group.set_name(name);
  group.set_members(members);
  group.set_key(key);
  group.set_issued(issued);
}

// All have made the same calls but the absent one, which lacks the last of fsdp.
v1::RankDiagnosis found_of(int rank) {
  const int calls = job::most_calls(kRanks);
  v1::RankDiagnosis found;
  found.mutable_status()->set_rank(rank);
  found.mutable_status()->set_phase("forward");
  found.set_alive(true);
  found.set_stacks(absl::StrCat("thread ", rank, "\n  where_all_are\n"));
  const int first = rank - rank % kGroupSize;
  const int of_all = (calls + 1) / 2 - (rank == kAbsent ? 1 : 0);
  add_group(found, "fsdp", absl::StrCat("0-", kRanks - 1), 1, of_all);
  add_group(found, "tp", absl::StrCat(first, "-", first + kGroupSize - 1), 2 + first, calls / 2);
  for (int i = 0; i < calls; ++i) {
    if (i % 2 == 0 && i / 2 >= of_all) continue;
    v1::FlightCall& call = *found.add_calls();
    call.set_group(i % 2);
    call.set_sequence(i / 2 + 1);
    call.set_operation(i % 2 == 0 ? "all_gather" : "all_reduce");
    call.set_type("float");
    call.set_elements(1 << 20);
    call.set_mark(i / 10);
    call.set_since_mark(i % 10);
    call.set_created_nanoseconds(1000 * i + rank % 1000);
    call.set_completed(i + 2 < calls);
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
    take(job);
    for (int i = 0; i < 20 && nodes_.empty(); ++i) tick();
    report_all(v1::AttemptReport::PREPARED);
    report_all(v1::AttemptReport::STARTED);
  }

  void stand_still() {
    v1::WorkerMessage message;
    *message.mutable_events()->mutable_id() = id_;
    const int rank = nodes_.begin()->second.front();
    message.mutable_events()->set_rank(rank);
    v1::RankEvent* event = message.mutable_events()->add_events();
    event->set_sequence(1);
    event->set_json(R"({"kind":"error","class":"peer","reason":"COLLECTIVE_TIMEOUT","message":"all_gather"})");
    say(nodes_.begin()->first, message);
    v1::WorkerMessage ended;
    *ended.mutable_attempt()->mutable_id() = id_;
    ended.mutable_attempt()->set_phase(v1::AttemptReport::STARTED);
    ended.mutable_attempt()->add_exits()->set_rank(rank);
    ended.mutable_attempt()->mutable_exits(0)->set_exit_code(rank_protocol::kExitPeerLost);
    say(nodes_.begin()->first, ended);
  }
  void answer() {
    for (const auto& [session, ranks] : nodes_) {
      for (const int rank : ranks) {
        v1::WorkerMessage message;
        *message.mutable_diagnosis()->mutable_id() = id_;
        *message.mutable_diagnosis()->mutable_rank() = found_of(rank);
        message.mutable_diagnosis()->set_end(rank == ranks.back());
        say(session, message);
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
    open.hello.set_diagnoses(true);
    take(open);
  }
  void report_all(v1::AttemptReport::Phase phase) {
    for (const auto& [session, ranks] : nodes_) {
      v1::WorkerMessage message;
      *message.mutable_attempt()->mutable_id() = id_;
      message.mutable_attempt()->set_phase(phase);
      message.mutable_attempt()->set_store_port(1234);
      say(session, message);
    }
  }
  void say(SessionId session, const v1::WorkerMessage& message) {
    take(Heard{absl::StrCat("node", session - 1), session, message});
  }

  void take(const Input& input) override {
    std::deque<Input> todo = {input};
    while (!todo.empty()) {
      const std::clock_t begin = std::clock();
      const Effects effects = core_.step(todo.front(), now_);
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
      if (!send.message.has_prepare()) continue;
      id_ = send.message.prepare().id();
      nodes_[send.session] = {send.message.prepare().ranks().begin(), send.message.prepare().ranks().end()};
    }
  }

  v1::AttemptId id_;
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
