// When the pure scheduler runs, with what, and what becomes of its decisions.

#include <algorithm>

#include "controller/core/core.h"
#include "controller/scheduler/scheduler.h"

namespace titan::core {
namespace {

// Why a job waits is shown for the front of the queue at once and for the rest in later cycles.
constexpr size_t kReasonsPerCycle = 200;
// A cycle costs about a microsecond for every job and node. Long ones take no more than a tenth of the time.
constexpr int64_t kShortCycle = 64;
constexpr absl::Duration kPause = absl::Microseconds(10);

}  // namespace

// Urgent: something ended or came back. A new job may wait a little when the queue is long, or thousands of submissions
// a second would each walk it.
void Core::request_schedule(bool urgent) {
  if (!may_schedule() || (!urgent && now_.monotonic < next_cycle_)) {
    schedule_requested_ = true;
    return;
  }
  schedule();
}

bool Core::may_schedule() {
  if (scheduling_) return true;
  const bool all_heard = std::none_of(nodes_.all().begin(), nodes_.all().end(), [](const auto& item) {
    return item.second.state == cluster::NodeState::kReconciling;
  });
  scheduling_ = now_.monotonic >= schedule_after_ || all_heard;
  return scheduling_;
}

void Core::set_pending(LiveJob& job, const std::string& reason, const std::string& message, Change& change) {
  if (job.pending_reason == reason && job.pending_message == message) return;
  job.pending_reason = reason;
  job.pending_message = message;
  show(change, job);
}

void Core::schedule() {
  const absl::Duration now = now_.monotonic;
  effects_.scheduled = true;
  schedule_requested_ = false;
  const auto length = static_cast<int64_t>(jobs_.size() + nodes_.all().size());
  if (length > kShortCycle) next_cycle_ = now + std::min(absl::Milliseconds(200), kPause * length);
  std::map<std::string, int> used;
  std::vector<scheduler::JobView> waiting;
  Change reasons;
  const std::set<std::string> saving = jobs_that_still_save();
  for (const auto& [name, strays] : strays_) used[name] += devices_of_strays(name);
  for (auto& [uid, job] : jobs_) {
    if (job.attempt) {
      for (const auto& [node, part] : job.attempt->parts) {
        // Devices of ended parts stay with an attempt that is still being stopped elsewhere: it comes back to them.
        if (!part.lost) used[node] += part.placement.num_ranks;
      }
    } else if (job.waits_for_nodes() && job.restart_at <= now && saving.count(uid) == 0) {
      const job::Spec& spec = job.record.spec;
      waiting.push_back({uid,
                         job.record.name,
                         spec.device,
                         spec.ranks,
                         spec.ranks_per_node,
                         spec.priority,
                         job.record.order,
                         job.record.state == job::JobState::kRecovering,
                         job.record.reserved,
                         {job.record.avoided_nodes.begin(), job.record.avoided_nodes.end()}});
    } else {
      for (const auto& [node, devices] : job.record.reserved) used[node] += devices;
      if (saving.count(uid) == 0) continue;
      schedule_requested_ = true;
      set_pending(job, "OLD_ATTEMPT_SAVES", "an attempt that this controller's records lack saves and ends first",
                  reasons);
    }
  }
  if (waiting.empty()) return commit(std::move(reasons));
  std::vector<scheduler::NodeView> views;
  for (const auto& [name, node] : nodes_.all()) {
    views.push_back({name, node.record.device, node.record.devices, std::max(0, node.record.devices - used[name]),
                     node.can_take_ranks(), node.record.cordoned});
  }
  for (scheduler::Decision& decision : scheduler::plan(std::move(waiting), std::move(views))) {
    LiveJob& job = jobs_.at(decision.uid);
    if (!decision.placements.empty()) {
      start_attempt(job, std::move(decision.placements));
    } else if (reasons.then.views.size() < kReasonsPerCycle) {
      set_pending(job, decision.reason, decision.message, reasons);
    }
  }
  commit(std::move(reasons));
}

std::optional<scheduler::Misfit> Core::misfit(const job::Spec& spec) const {
  std::vector<scheduler::NodeView> nodes;
  for (const auto& [name, node] : nodes_.all())
    nodes.push_back({name, node.record.device, node.record.devices, node.record.devices});
  scheduler::JobView job;
  job.device = spec.device;
  job.ranks = spec.ranks;
  job.ranks_per_node = spec.ranks_per_node;
  return scheduler::misfit(job, nodes);
}

std::vector<planner::Room> Core::rooms(const std::string& device) const {
  std::vector<planner::Room> rooms;
  for (const auto& [name, node] : nodes_.all()) {
    const job::NodeRecord& record = node.record;
    if (record.device != device || record.devices == 0) continue;
    // A node that does not report it, of an older version, shares its host's among the ranks on its cores.
    const int64_t share = device == "cpu" ? record.memory_bytes / record.devices : 0;
    rooms.push_back({record.devices, record.device_memory_bytes > 0 ? record.device_memory_bytes : share});
  }
  return rooms;
}

}  // namespace titan::core
