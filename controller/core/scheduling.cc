// When the pure scheduler runs, and what becomes of its decisions.

#include <algorithm>

#include "common/base/testing/planted.h"
#include "common/base/text/counted.h"
#include "controller/core/core.h"
#include "controller/scheduler/scheduler.h"

namespace titan::core {
namespace {

// Whatever is new makes all that wait look again, and shows what changed of why. With thousands of nodes and jobs, of
// which many may come in at once, that takes no more than a tenth of the time.
constexpr size_t kFew = 64;
constexpr absl::Duration kPause = absl::Microseconds(10);

// It has not registered since this controller's start.
bool is_awaited(const std::pair<const std::string, Node>& node) { return node.second.state == NodeState::kReconciling; }

std::vector<job::Placement> placements_of(const std::vector<scheduler::Run>& runs) {
  std::vector<job::Placement> placements;
  for (const scheduler::Run& run : runs) {
    placements.push_back({run.node, run.first_rank, static_cast<int>(run.devices.size()), run.devices});
  }
  return placements;
}

// Ranks of one tensor group talk in every layer, over what connects the GPUs of a node. A CPU "device" is a slot of a
// host, and slots of two hosts are as good.
int unit_of(const job::Spec& spec) {
  const auto tensor = spec.mesh.find("tp");
  if (spec.device == "cpu" || tensor == spec.mesh.end() || spec.ranks % tensor->second != 0) return 1;
  return tensor->second;
}

}  // namespace

scheduler::Job asked_for(const job::Spec& spec) {
  scheduler::Job job;
  job.device = spec.device;
  job.ranks = spec.ranks;
  job.ranks_per_node = spec.ranks_per_node;
  job.unit = unit_of(spec);
  job.priority = spec.priority;
  return job;
}

// Urgent: something ended or came back. A new job may wait a little when the queue is long, or thousands of submissions
// a second would each walk it.
void Core::request_schedule(bool urgent) {
  if ((!urgent && now_.monotonic < next_cycle_) || !may_schedule()) {
    schedule_requested_ = true;
    return;
  }
  schedule();
}

bool Core::may_schedule() {
  if (scheduling_) return true;
  const bool all_heard = std::none_of(nodes_.all().begin(), nodes_.all().end(), is_awaited);
  scheduling_ = now_.monotonic >= schedule_after_ || all_heard;
  if (!scheduling_) pause_scheduling();
  return scheduling_;
}

// A start with thousands of nodes takes its time.
void Core::say_who_is_awaited() {
  const auto awaited = std::count_if(nodes_.all().begin(), nodes_.all().end(), is_awaited);
  const std::string message = absl::StrCat("the controller has just started and waits for ", counted(awaited, "node"),
                                           " of ", nodes_.all().size());
  Change reasons;
  for (auto& [uid, job] : jobs_) {
    if (job.waits_for_nodes() && job.pending_reason.empty()) set_pending(job, "NODES_RECONCILING", message, reasons);
  }
  commit(std::move(reasons));
}

void Core::pause_scheduling() {
  const size_t length = jobs_.size() + nodes_.all().size();
  if (length > kFew)
    next_cycle_ = now_.monotonic + std::min(absl::Milliseconds(200), kPause * static_cast<int64_t>(length));
}

void Core::set_pending(LiveJob& job, const std::string& reason, const std::string& message, Change& change) {
  if (job.pending_reason == reason && job.pending_message == message) return;
  job.pending_reason = reason;
  job.pending_message = message;
  show(change, job);
}

bool Core::schedule_is_due() {
  const absl::Duration now = now_.monotonic;
  if (!scheduling_) return may_schedule();
  if (std::any_of(held_back_.begin(), held_back_.end(),
                  [&](const std::string& uid) { return jobs_.at(uid).restart_at <= now; })) {
    return true;
  }
  return now >= next_cycle_ && (schedule_requested_ || scheduler_.has_work());
}

// Jobs whose backoff is over may be placed; one whose older attempt still saves may not.
void Core::fill_queue(Change& reasons) {
  const std::set<std::string> saving = jobs_that_still_save();
  for (const std::string& uid : saving) {
    if (scheduler_.waits(uid)) hold_back(jobs_.at(uid));
    if (held_back_.count(uid) == 0) continue;
    schedule_requested_ = true;
    set_pending(jobs_.at(uid), "OLD_ATTEMPT_SAVES",
                "an attempt that this controller's records lack saves and ends first", reasons);
  }
  const std::vector<std::string> held_back(held_back_.begin(), held_back_.end());
  for (const std::string& uid : held_back) {
    LiveJob& job = jobs_.at(uid);
    if (testing::planted(testing::Bug::kBackoffNeverEnds) && job.record.state == job::JobState::kRecovering) continue;
    if (job.restart_at <= now_.monotonic && saving.count(uid) == 0) enter_queue(job);
  }
}

void Core::schedule() {
  effects_.scheduled = true;
  schedule_requested_ = false;
  Change reasons;
  fill_queue(reasons);
  pause_scheduling();
  for (const scheduler::Outcome& outcome : scheduler_.cycle(scheduler_time(now_.monotonic))) {
    LiveJob& job = jobs_.at(outcome.uid);
    if (outcome.runs.empty()) {
      set_pending(job, outcome.reason, outcome.message, reasons);
    } else {
      start_attempt(job, placements_of(outcome.runs));
    }
  }
  commit(std::move(reasons));
}

std::optional<scheduler::Misfit> Core::misfit(const job::Spec& spec) const {
  return scheduler_.misfit(asked_for(spec));
}

}  // namespace titan::core
