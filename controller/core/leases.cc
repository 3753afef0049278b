// Leases: when a silent node's lease is over, whether its jobs continue without it, and what is lost with it.

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr absl::Duration kUnknownStep = absl::Seconds(8);  // Until a node has shown kStepsToKnow steps.

// Returns how long a part's counters may stand still while its ranks work: three of the attempt's longest steps plus
// two beats, and longer until the node has shown enough steps and in phases that show no progress.
absl::Duration stall_timeout(const LiveAttempt& attempt, const NodePart& part, absl::Duration beat) {
  if (part.in_quiet_phase()) return std::max(absl::Seconds(30), 2 * attempt.longest_pause);
  const absl::Duration usual = 2 * beat + std::max(beat, 3 * attempt.longest_step);
  if (part.steps_measured < kStepsToKnow) return std::max({kUnknownStep, usual, 2 * attempt.longest_pause});
  return usual;
}

// Returns true while the job's other nodes advance: the silent node's part is left alone. It is also left alone for a
// grace if no other node can be heard. Then the job's pending reason is NODE_UNREACHABLE.
bool still_runs_without(Step& step, LiveJob& job, const std::string& silent_node) {
  const LiveAttempt& attempt = *job.attempt;
  const absl::Duration now = step.now.monotonic;
  const auto set_reason = [&](const std::string& reason, const std::string& message) {
    if (reason.empty() && job.pending_reason != kNodeUnreachable) return;
    Change change;
    set_pending(job, reason, message, change);
    step.commit(std::move(change));
  };
  if (attempt.failing || (job.stops() && !job.record.intent.save)) {
    set_reason("", "");
    return false;
  }
  bool anybody_speaks = false, advancing = false;
  absl::Duration last_word = -absl::InfiniteDuration();
  for (const auto& [name, part] : attempt.parts) {
    const Node* node = step.state.nodes.find(name);
    if (part.ended || node == nullptr) continue;
    last_word = std::max(last_word, node->last_beat);
    if (name == silent_node || !node->speaks()) continue;  // A suspect node cannot show it yet.
    anybody_speaks = true;
    advancing = advancing || now - part.last_advance <= stall_timeout(attempt, part, step.options.beat);
  }
  if (anybody_speaks) {
    set_reason("", "");
    return advancing;
  }
  const absl::Duration grace = absl::Seconds(job.record.spec.restart.unreachable_grace_seconds);
  if (now - last_word > step.options.lease + grace) {
    set_reason("", "");
    return false;
  }
  set_reason(
      kNodeUnreachable,
      job.stops()
          ? "no node of the job can be reached: its ranks may still run; they save and end once a node is reachable"
          : absl::StrCat("no node of the job can be reached; the next attempt starts elsewhere ",
                         absl::FormatDuration(grace), " after the lease has ended"));
  return false;
}

}  // namespace

void check_leases(Step& step) {
  const absl::Duration now = step.now.monotonic;
  // Result of still_runs_without() by job, until a part of the job is given up. It is the same for all silent nodes of
  // a job, which may be thousands.
  std::map<std::string, bool> still_runs;
  for (auto& [name, node] : step.state.nodes.all()) {
    if (!step.state.nodes.lease_over(node, now)) continue;
    bool runs = false;
    for (const std::string& uid : step.state.placed.on(name)) {
      LiveJob& job = step.state.jobs.at(uid);
      if (job.attempt->parts.at(name).ended) continue;
      const auto known = still_runs.find(uid);
      const bool runs_without = known != still_runs.end() ? known->second : still_runs_without(step, job, name);
      still_runs[uid] = runs_without;
      if (runs_without) {
        runs = true;
      } else if (job.pending_reason != kNodeUnreachable) {
        lose_part(step, job, name);
        still_runs.erase(uid);
      }
    }
    const NodeState state = runs ? NodeState::kUnreachable : NodeState::kLost;
    if (node.state == state) continue;
    node.state = state;
    update_scheduler_node(step, node);
    Change change;
    add_node_event(step, change, node, runs ? "NodeUnreachable" : "NodeLost",
                   absl::StrCat(node.deaf ? "has heard nothing for " : "silent for ",
                                absl::FormatDuration(absl::Trunc(now - node.last_beat, absl::Milliseconds(1))),
                                runs ? "; the job's other nodes show that it advances" : ""),
                   "warning");
    put_node(step, change, node);
    step.commit(std::move(change));
  }
}

void lose_part(Step& step, LiveJob& job, const std::string& node) {
  const NodePart& part = job.attempt->parts.at(node);
  release_part(step, job, node);
  leave_behind(step, job, node);
  Change change;
  add_event(step, change, job,
            {.node = node,
             .attempt = job.attempt->record.number,
             .reason = "NodeLost",
             .message = absl::StrCat("node ", node, " is lost with ", counted(part.placement.num_ranks, "rank")),
             .severity = "warning"});
  put_job(change, job);
  conclude(step, job, std::move(change), step.now.monotonic - step.state.nodes.find(node)->last_beat);
}

}  // namespace titan::core
