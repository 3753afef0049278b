// Deadlines of connected nodes: a hung mount delays a Prepare, a process that cannot be killed delays a Stop.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr absl::Duration kKillTime = absl::Seconds(30);       // Ample time from SIGKILL to the last rank's end.
constexpr absl::Duration kReportsBefore = absl::Seconds(20);  // The node reports what does not end this much earlier.
constexpr absl::Duration kMinSave = absl::Seconds(10);        // Grace for a node that is notified late.
constexpr absl::Duration kMinTime = absl::Seconds(1);         // Zero would be the node's default.

struct GivenUp {
  std::string reason;  // UPPER_SNAKE.
  std::string event;
  std::string message;
};

std::vector<int> ranks_of(const job::Placement& placement) {
  std::vector<int> ranks;
  for (int i = 0; i < placement.num_ranks; ++i) ranks.push_back(placement.first_rank + i);
  return ranks;
}

// Returns the time to save before the ranks are killed.
absl::Duration stop_grace(const LiveJob& job) {
  const LiveAttempt& attempt = *job.attempt;
  const bool saves = !attempt.failing && job.record.intent.save && attempt.start_sent;
  return saves ? absl::Seconds(job.record.spec.restart.stop_grace_seconds) : absl::ZeroDuration();
}

void give_up_part(Step& step, LiveJob& job, const std::string& name, const GivenUp& why, Change& change) {
  LiveAttempt& attempt = *job.attempt;
  abandon_part(step, job, name);
  // If the attempt had failed before, this is not what ended it.
  if (attempt.failing) {
    blame_nodes(step, job, {job::Cause::kLaunchFailed, why.reason, why.message, false, name}, {});
  } else {
    add_refusal(job, {name, why.reason, why.message}, change);
  }
  add_event(step, change, job,
            {.node = name,
             .attempt = attempt.record.number,
             .reason = why.event,
             .message = absl::StrCat("node ", name, ": ", why.message),
             .severity = "warning"});
}

void give_up_parts(Step& step, LiveJob& job) {
  LiveAttempt& attempt = *job.attempt;
  const bool stops = attempt.stop_by.has_value();
  attempt.prepare_by.reset();
  Change change;
  for (const auto& [name, part] : attempt.parts) {
    const Node* node = step.state.nodes.find(name);
    if (part.ended || (!stops && part.prepared) || node == nullptr) continue;
    if (step.state.nodes.lease_over(*node, step.now.monotonic)) continue;  // It is silent, so its lease decides.
    if (stops && part.stop_by && step.now.monotonic <= *part.stop_by) continue;
    if (stops) {
      give_up_part(step, job, name,
                   {"STOP_TIMEOUT", "StopTimedOut",
                    absl::StrCat(counted(part.placement.num_ranks, "rank"), " did not end in time, ",
                                 "perhaps because a process cannot be killed. The devices stay occupied until the node "
                                 "reports them free")},
                   change);
    } else {
      give_up_part(step, job, name, {"PREPARE_TIMEOUT", "PrepareTimedOut", "did not prepare in time: check its mounts"},
                   change);
      send_stop(step, job, name);
    }
  }
  // In an older copy of the store the attempt may still be preparing although it has run and ended since. Then the
  // other nodes would wait for ever.
  const bool cannot_start =
      !stops && change.mutations.empty() &&
      std::any_of(attempt.parts.begin(), attempt.parts.end(), [](const auto& item) { return item.second.ended; });
  if (cannot_start) {
    add_refusal(job, {"", "LAUNCH_FAILED", "the attempt ended on some of its nodes before it was started on all"},
                change);
  }
  if (change.mutations.empty()) return;
  put_job(change, job);
  conclude(step, job, std::move(change), absl::ZeroDuration());
}

}  // namespace

absl::Duration stop_time(const LiveJob& job) { return stop_grace(job) + kKillTime; }

// A drain that has to be repeated gets its full time again: no step was lost for it. The end of a failed or cancelled
// attempt is not delayed by a new session or a second command.
void set_stop_deadline(const Now& now, LiveJob& job) {
  LiveAttempt& attempt = *job.attempt;
  const absl::Duration by = now.monotonic + stop_time(job);
  const bool stands = attempt.stop_by && (attempt.failing || job.stops());
  attempt.stop_by = stands ? std::min(*attempt.stop_by, by) : by;
}

// Only the wall clock says how long a stop of the earlier controller process has lasted, and it may be wrong. It never
// shortens the time to kill, and never extends a stop beyond its full time.
void restore_stop_deadline(const Now& now, LiveJob& job) {
  set_stop_deadline(now, job);
  LiveAttempt& attempt = *job.attempt;
  if (attempt.failing || job.record.intent.deadline_ns == 0 || !attempt.stop_by) return;
  const absl::Duration left = absl::Nanoseconds(job.record.intent.deadline_ns - now.wall_ns());
  attempt.stop_by = now.monotonic + std::clamp(left, kKillTime, stop_time(job));
}

// A node that could not be notified before still gets the least time to stop, once.
absl::Duration stop_deadline(const Now& now, const LiveJob& job, NodePart& part) {
  const absl::Duration least = std::min(stop_grace(job), kMinSave) + kKillTime;
  if (!part.stop_by) part.stop_by = now.monotonic + least;
  return std::max(job.attempt->stop_by.value_or(now.monotonic + stop_time(job)), *part.stop_by);
}

void add_stop_times(const Now& now, Stop& stop, const LiveJob& job, absl::Duration by) {
  const absl::Duration left = by - now.monotonic;
  stop.grace = std::clamp(left - kKillTime, absl::ZeroDuration(), stop_grace(job));
  stop.deadline = std::max(left - kReportsBefore, kMinTime);
}

// The node gives up before the controller does, and reports what it waits for.
absl::Duration prepare_time(const CoreOptions& options, const Now& now, const LiveAttempt& attempt) {
  if (!attempt.prepare_by) return absl::ZeroDuration();
  const absl::Duration left = *attempt.prepare_by - now.monotonic - options.prepare_timeout / 5;
  return std::max(left, kMinTime);
}

void check_deadlines(Step& step) {
  const absl::Duration now = step.now.monotonic;
  std::vector<std::string> late;  // conclude() may remove a job from the map.
  for (const auto& [uid, job] : step.state.jobs.live()) {
    if (!job.attempt) continue;
    const LiveAttempt& attempt = *job.attempt;
    const bool prepares = !attempt.failing && !attempt.start_sent && !attempt.stop_by;
    if ((prepares && attempt.prepare_by && now > *attempt.prepare_by) || (attempt.stop_by && now > *attempt.stop_by)) {
      late.push_back(uid);
    }
  }
  for (const std::string& uid : late) give_up_parts(step, step.state.jobs.at(uid));
}

// The job continues without the part.
void abandon_part(Step& step, LiveJob& job, const std::string& name) {
  NodePart& part = job.attempt->parts.at(name);
  const std::vector<int> devices = part.devices;
  release_part(step, job, name);
  part.overdue = true;
  Stray& stray = step.state.strays.add(name, job.key());
  stray.job = job.record.name;
  stray.ranks = ranks_of(part.placement);
  stray.devices = part.placement.num_ranks;
  stray.device_indices = devices;
  claim_stray(step.state, name, job.key(), stray);
}

// The node itself reports that its ranks cannot be ended, so there is nothing more to wait for.
void take_stop_timeout(Step& step, LiveJob& job, Node& node, const std::string& message) {
  const std::string name = node.record.name;
  Change change;
  add_node_event(step, change, node, "RankUnkillable", absl::StrCat(job.record.name, ": ", message), "warning", "",
                 job.record.name);
  put_node(step, change, node);
  // An attempt that ends on request blames nobody by itself.
  if (job.stops() && !job.attempt->failing) {
    blame_nodes(step, job, {job::Cause::kLaunchFailed, "RANK_UNKILLABLE", message, false, name}, {});
  }
  give_up_part(step, job, name, {"RANK_UNKILLABLE", "RankUnkillable", message}, change);
  put_job(change, job);
  conclude(step, job, std::move(change), absl::ZeroDuration());
}

void end_abandoned_part(Step& step, LiveJob& job, const std::string& node, Change& change) {
  drop_stray(step, node, job.key());
  if (std::optional<Send> order = forget(step.state.nodes, job.key(), node))
    change.then.sends.push_back(*std::move(order));
}

}  // namespace titan::core
