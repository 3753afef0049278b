// When the pure scheduler runs, and what follows from its decisions.

#include <algorithm>

#include "common/base/text/quantities.h"
#include "controller/core/step.h"
#include "controller/scheduler/scheduler.h"

namespace titan::core {
namespace {

// True if the node has not registered since this controller's start.
bool is_awaited(const std::pair<const std::string, Node>& node) { return node.second.state == NodeState::kReconciling; }

std::vector<job::Placement> placements_of(const std::vector<scheduler::Run>& runs) {
  std::vector<job::Placement> placements;
  for (const scheduler::Run& run : runs) {
    placements.push_back({run.node, run.first_rank, static_cast<int>(run.devices.size()), run.devices});
  }
  return placements;
}

// Returns how many ranks must share a node. Ranks of one tensor group communicate in every layer, over the links
// between the GPUs of a node. A CPU "device" is a slot of a host, and slots of two hosts are as good.
int unit_of(const job::SchedulingSpec& spec) {
  const auto tensor = spec.mesh.find("tp");
  if (spec.device == "cpu" || tensor == spec.mesh.end() || spec.ranks % tensor->second != 0) return 1;
  return tensor->second;
}

void pause_scheduling(State& state, const Now& now) {
  state.cycles.pause(now.monotonic, state.jobs.live().size() + state.nodes.all().size());
}

bool may_schedule(State& state, const Now& now) {
  if (state.cycles.has_begun()) return true;
  const bool all_heard = std::none_of(state.nodes.all().begin(), state.nodes.all().end(), is_awaited);
  if (state.cycles.begin(now.monotonic, all_heard)) return true;
  pause_scheduling(state, now);
  return false;
}

// Jobs may be placed once their backoff is over, unless an attempt of theirs that the records lack still saves.
void fill_queue(Step& step, Change& reasons) {
  const std::set<std::string> saving = jobs_that_still_save(step.state, step.now);
  for (const std::string& uid : saving) {
    if (step.state.queue.waits(uid)) hold_back(step.state.queue, step.state.jobs.at(uid));
    if (step.state.queue.held_back().count(uid) == 0) continue;
    step.state.cycles.request();
    set_pending(step.state.jobs.at(uid), "OLD_ATTEMPT_SAVES",
                "waits for an attempt that is missing in this controller's records to save and end", reasons);
  }
  for (const std::string& uid : std::set<std::string>(step.state.queue.held_back())) {
    LiveJob& job = step.state.jobs.at(uid);
    if (job.restart_at <= step.now.monotonic && saving.count(uid) == 0) enter_queue(step, job);
  }
}

void schedule(Step& step) {
  step.effects.scheduled = true;
  step.state.cycles.take_request();
  Change reasons;
  fill_queue(step, reasons);
  pause_scheduling(step.state, step.now);
  for (const scheduler::Outcome& outcome : step.state.queue.cycle(scheduler_time(step.now.monotonic))) {
    LiveJob& job = step.state.jobs.at(outcome.uid);
    if (outcome.runs.empty()) {
      set_pending(job, outcome.reason, outcome.message, reasons);
    } else {
      start_attempt(step, job, placements_of(outcome.runs));
    }
  }
  step.commit(std::move(reasons));
}

}  // namespace

scheduler::PendingJob scheduler_job(const job::SchedulingSpec& spec) {
  scheduler::PendingJob job;
  job.device = spec.device;
  job.ranks = spec.ranks;
  job.ranks_per_node = spec.ranks_per_node;
  job.unit = unit_of(spec);
  job.priority = spec.priority;
  return job;
}

// Urgent: something ended, or a request changed the queue. New jobs and returning nodes may wait a little while the
// queue is long. Otherwise each of thousands of submissions a second would walk the queue.
void request_schedule(Step& step, bool urgent) {
  if ((!urgent && step.state.cycles.is_paused(step.now.monotonic)) || !may_schedule(step.state, step.now)) {
    step.state.cycles.request();
    return;
  }
  schedule(step);
}

// A start with thousands of nodes takes time.
void explain_reconciling(Step& step) {
  const auto awaited = std::count_if(step.state.nodes.all().begin(), step.state.nodes.all().end(), is_awaited);
  const std::string message = absl::StrCat("the controller has just started and waits for ", counted(awaited, "node"),
                                           " of ", step.state.nodes.all().size());
  Change reasons;
  for (auto& [uid, job] : step.state.jobs.live()) {
    if (job.waits_for_nodes() && job.pending_reason.empty()) set_pending(job, "NODES_RECONCILING", message, reasons);
  }
  step.commit(std::move(reasons));
}

void set_pending(LiveJob& job, const std::string& reason, const std::string& message, Change& change) {
  if (job.pending_reason == reason && job.pending_message == message) return;
  job.pending_reason = reason;
  job.pending_message = message;
  show(change, job);
}

bool schedule_is_due(State& state, const Now& now) {
  if (!state.cycles.has_begun()) return may_schedule(state, now);
  const std::set<std::string>& held_back = state.queue.held_back();
  if (std::any_of(held_back.begin(), held_back.end(),
                  [&](const std::string& uid) { return state.jobs.at(uid).restart_at <= now.monotonic; })) {
    return true;
  }
  return !state.cycles.is_paused(now.monotonic) && (state.cycles.is_requested() || state.queue.has_work());
}

}  // namespace titan::core
