// Checks that a job that fits is placed soon. The check computes the queue and the free devices itself, from the
// machines and the published jobs. It never counts more devices as free than the scheduler may: devices that are
// reserved for another job do not count.

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {
namespace {

constexpr absl::Duration kPlacedWithin = absl::Seconds(8);
constexpr absl::Duration kSchedulesAfter =
    absl::Seconds(8);  // After a start of the controller: its nodes register first.

}  // namespace

// Returns the first job of the queue: by priority, then recovering jobs, then by age. Jobs in backoff, and those whose
// earlier attempt still saves, do not count.
reconcile::JobViewPtr Scenario::first_in_queue() const {
  reconcile::JobViewPtr first;
  const auto place = [](const job::JobRecord& job) {
    return std::tuple(-job.spec.priority, job.state != job::JobState::kRecovering, job.order);
  };
  for (const auto& [uid, shown] : shown_) {
    const bool waits = shown.attempt == 0 && !shown.over && !shown.stops;
    if (!waits || (shown.state != "QUEUED" && shown.state != "RECOVERING")) continue;
    const reconcile::JobViewPtr view = cluster_.controller->published().find(uid);
    if (view == nullptr || view->pending_reason == "BACKOFF" || view->pending_reason == "OLD_ATTEMPT_SAVES") continue;
    if (first == nullptr || place(*view->record) < place(*first->record)) first = view;
  }
  return first;
}

// Returns the number of free devices: no published attempt, no process or plan of the node, and no reservation uses
// them.
int Scenario::free_devices(const std::string& node, const std::string& uid) const {
  std::set<int> used;
  int unnamed = 0;
  for (const auto& [other, shown] : shown_) {
    const auto reserved = shown.reserved.find(node);
    if (other != uid && !shown.over && reserved != shown.reserved.end()) unnamed += reserved->second;
    if (shown.over || shown.used.count(node) == 0) continue;
    const reconcile::JobViewPtr view = cluster_.controller->published().find(other);
    for (const job::Placement& placement : view->attempts.back()->placements) {
      if (placement.node != node) continue;
      used.insert(placement.devices.begin(), placement.devices.end());
      unnamed += placement.num_ranks - static_cast<int>(placement.devices.size());
    }
  }
  for (const auto& [key, attempt] : cluster_.machines.at(node)->core()->state().attempts) {
    if (attempt.holds_devices()) used.insert(attempt.record.devices.begin(), attempt.record.devices.end());
  }
  return std::max(0, size_.devices - unnamed - static_cast<int>(used.size()));
}

bool Scenario::fits_now(const job::JobRecord& job) const {
  int capacity = 0;
  for (const reconcile::NodeView& view : cluster_.controller->nodes()) {
    const core::Node& node = view.node;
    const std::string& name = node.record.name;
    const bool is_usable = node.can_take_ranks() && !node.flapping && !node.record.cordoned &&
                           std::count(job.avoided_nodes.begin(), job.avoided_nodes.end(), name) == 0;
    const auto machine = cluster_.machines.find(name);
    if (!is_usable || machine == cluster_.machines.end() || machine->second->core() == nullptr) continue;
    if (machine->second->idle)
      continue;  // Devices that were requested from it count as used until it reports otherwise.
    const int free = free_devices(name, job.uid), share = job.spec.ranks_per_node;
    capacity += share == 0 ? free : free >= share ? share : 0;
  }
  return capacity >= job.spec.ranks;
}

void Scenario::check_placing() {
  const absl::Duration now = cluster_.timeline.now();
  const bool is_steady = now - steady_since_ >= kSchedulesAfter && cluster_.controller_answers();
  const reconcile::JobViewPtr first = is_steady && !size_.is_large() ? first_in_queue() : nullptr;
  if (first == nullptr || !fits_now(*first->record)) return fits_.reset();
  if (!fits_ || fits_->first != first->record->uid) fits_.emplace(first->record->uid, now);
  if (now - fits_->second < kPlacedWithin) return;
  cluster_.violate(absl::StrCat("job ", first->record->uid, ", the first in the queue, fits for ",
                                absl::FormatDuration(now - fits_->second),
                                " and is not placed: ", first->pending_reason, ": ", first->pending_message));
}

}  // namespace titan::simulation
