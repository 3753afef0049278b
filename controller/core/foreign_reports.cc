// A node reports on what was placed on it. Anyone who has its certificate can send anything: reports on other nodes'
// parts change nothing here, and are recorded once per session.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr size_t kMaxStrays = 10'000;

bool has(const job::AttemptRecord& attempt, const std::string& node) {
  return std::any_of(attempt.placements.begin(), attempt.placements.end(),
                     [&](const job::Placement& placement) { return placement.node == node; });
}

bool has(const job::AttemptRecord& attempt, const std::string& node, int rank) {
  return std::any_of(attempt.placements.begin(), attempt.placements.end(), [&](const job::Placement& placement) {
    return placement.node == node && rank >= placement.first_rank && rank - placement.first_rank < placement.num_ranks;
  });
}

}  // namespace

const job::AttemptRecord* recorded(const Jobs& jobs, const AttemptKey& key) {
  const LiveJob* live = jobs.find(key.first);
  if (live != nullptr && live->attempt && live->attempt->record.number == key.second) {
    return &live->attempt->record;
  }
  const JobViewPtr over = jobs.find_over(key.first);
  if (live == nullptr && over == nullptr) return nullptr;
  for (const auto& attempt : live != nullptr ? live->past : over->attempts) {
    if (attempt->number == key.second) return attempt.get();
  }
  return nullptr;
}

bool is_elsewhere(const Jobs& jobs, const std::string& node, const AttemptKey& key) {
  const job::AttemptRecord* const attempt = recorded(jobs, key);
  return attempt != nullptr && !has(*attempt, node);
}

// For an attempt that an older copy of the store lacks, a node is believed if its inventory listed the attempt.
bool may_report(const State& state, const Node& node, const AttemptKey& key, int rank) {
  if (const job::AttemptRecord* const attempt = recorded(state.jobs, key)) return has(*attempt, node.record.name, rank);
  const LiveJob* live = state.jobs.find(key.first);
  if (live == nullptr) return true;  // Nothing is taken for a job that has ended.
  return key.second <= live->record.attempts && state.strays.contains(node.record.name, key);
}

// Strays are kept and reported one by one: no node makes this controller keep more than a node can have.
bool may_list(Step& step, Node& node, const AttemptKey& key) {
  const Strays::OfNode& there = step.state.strays.on(node.record.name);
  if (there.size() < kMaxStrays || there.contains(key)) return true;
  note_foreign(step, node, absl::StrCat("more than ", kMaxStrays, " attempts that this controller does not know"));
  return false;
}

void note_foreign(Step& step, Node& node, const std::string& what, const std::string& job) {
  if (node.session == 0 || std::exchange(node.foreign_warned, node.session) == node.session) return;
  Change change;
  add_node_event(
      step, change, node, "NodeSpeaksForOthers",
      absl::StrCat("it sent ", what,
                   ": ignored. Either its titan-worker belongs to an older copy of this cluster, or somebody else uses "
                   "its certificate. Run `titanctl node cordon ",
                   node.record.name, "` and issue a new certificate. Further reports in this session are not shown"),
      "warning", "", job);
  put_node(step, change, node);
  step.commit(std::move(change));
}

}  // namespace titan::core
