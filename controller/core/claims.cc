// Informs the queue of nodes, owners of devices, and waiting jobs.

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

// Returns where a node stands, from the widest to the narrowest level: "z1/row2/rack7". Missing labels are left out.
std::string domain_of(const std::map<std::string, std::string>& labels) {
  constexpr std::array<const char*, 3> kLevels = {"zone", "row", "rack"};
  std::vector<std::string> path;
  for (const char* level : kLevels) {
    const auto label = labels.find(level);
    if (label != labels.end() && !label->second.empty()) path.push_back(label->second);
  }
  return absl::StrJoin(path, "/");
}

}  // namespace

void update_scheduler_node(Step& step, const Node& node) {
  const job::NodeRecord& record = node.record;
  step.touch(record.name);
  step.state.queue.set_node({record.name, record.device, record.devices, domain_of(record.labels),
                             node.can_take_ranks(), record.cordoned, node.speaks() && !node.unusable.empty()});
}

// If its ranks still run, the part becomes a stray, which claims the devices again.
void release_part(Step& step, LiveJob& job, const std::string& node) {
  NodePart& part = job.attempt->parts.at(node);
  part.ended = part.lost = true;
  step.touch(node);
  step.state.queue.release(job.record.uid, node);
}

// The node knows best which devices its ranks have. A worker of an older version may have chosen other devices.
void note_devices(SchedulingQueue& queue, LiveJob& job, const std::string& node, const AttemptInventory& item) {
  NodePart& part = job.attempt->parts.at(node);
  const std::vector<int>& reported = item.device_indices;
  const bool lacks = static_cast<int>(part.devices.size()) < part.placement.num_ranks;
  if (part.lost || (reported.empty() ? !lacks : reported == part.devices)) return;
  queue.release(job.record.uid, node);
  part.devices = queue.claim(job.record.uid, node, reported, part.placement.num_ranks, expected_end(job));
  if (reported.empty()) return;
  part.placement.devices = reported;
  for (job::Placement& placement : job.attempt->record.placements) {
    if (placement.node == node) placement.devices = reported;
  }
}

// Nobody else gets the devices that the job comes back to.
void hold_back(SchedulingQueue& queue, LiveJob& job) {
  std::erase_if(job.held, [&](const auto& held) { return job.record.reserved.count(held.first) == 0; });
  queue.hold_back(job.record.uid, job.held, expected_end(job));
}

void enter_queue(Step& step, LiveJob& job) {
  const job::JobRecord& record = job.record;
  scheduler::PendingJob waiting = scheduler_job(record.spec);
  waiting.uid = record.uid;
  waiting.name = record.name;
  waiting.order = record.order;
  waiting.recovering = record.state == job::JobState::kRecovering;
  waiting.time_limit = time_left(step.now, job);
  waiting.reserved = job.held;
  waiting.avoided = {record.avoided_nodes.begin(), record.avoided_nodes.end()};
  std::optional<absl::Duration> prefers_until;
  if (!job.held.empty() || !record.avoided_nodes.empty()) {
    prefers_until = step.now.monotonic + step.options.reserve_grace;
  }
  step.state.queue.enter(std::move(waiting), prefers_until);
}

// A node that never comes back would leave the job's other devices idle for ever. Devices that somebody else holds for
// ever would keep the job away from the nodes that it avoids.
void drop_expired_preferences(Step& step) {
  for (const std::string& uid : step.state.queue.take_expired_preferences(step.now.monotonic)) {
    LiveJob& job = step.state.jobs.at(uid);
    const bool held = !job.held.empty();
    job.record.reserved.clear();
    job.held.clear();
    const std::vector<std::string> avoided = std::exchange(job.record.avoided_nodes, {});
    step.state.queue.waits(uid) ? enter_queue(step, job) : hold_back(step.state.queue, job);
    Change change;
    const std::string waited = absl::StrCat("waited ", absl::FormatDuration(step.options.reserve_grace), " for ");
    if (held) {
      add_event(
          step, change, job,
          {.reason = "ReservationGivenUp",
           .message =
               waited + "devices in addition to its reserved ones: the reserved devices are released to other jobs"});
    }
    if (!avoided.empty()) {
      add_event(step, change, job,
                {.reason = "AvoidanceGivenUp",
                 .message = absl::StrCat(waited, "other nodes than ", absl::StrJoin(avoided, ", "),
                                         ", where it failed: it may be placed there again")});
    }
    put_job(change, job);
    step.commit(std::move(change));
  }
}

}  // namespace titan::core
