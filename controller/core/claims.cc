// What the scheduler is told: of nodes, of who has which devices, and of jobs that wait. It is told at once, so that
// whatever schedules next knows.
//
// A job has one owner's name, its uid, for the devices of its attempt, and for those that it comes back to while it is
// held back; a stray has its own.

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/testing/planted.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

// "z1/row2/rack7": where a node stands, from the widest to the narrowest; what its operator did not say is left out.
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

void tell_of(Step& step, const Node& node) {
  const job::NodeRecord& record = node.record;
  step.touch(record.name);
  step.state.scheduler.set_node({record.name, record.device, record.devices, domain_of(record.labels),
                                 node.can_take_ranks(), record.cordoned, node.speaks() && !node.unusable.empty()});
}

// The devices; when nobody has said which: so many that are free. Which they are now.
std::vector<int> claim(State& state, const std::string& owner, const std::string& node, std::vector<int> devices,
                       int count, absl::Time ends) {
  if (devices.empty()) {
    devices = state.scheduler.free_devices(node);
    devices.resize(std::min(devices.size(), static_cast<size_t>(count)));
  }
  state.scheduler.occupy(owner, node, devices, ends);
  if (testing::planted(testing::Bug::kUsedDevicesArePlaced)) state.scheduler.release(owner, node);
  return devices;
}

// A part is given up without its node's word: whoever else has its devices says so.
void lose(Step& step, LiveJob& job, const std::string& node) {
  NodePart& part = job.attempt->parts.at(node);
  part.ended = part.lost = true;
  step.touch(node);
  step.state.scheduler.release(job.record.uid, node);
}

// The node knows best which devices its ranks have; one of an older version may have chosen others than it was told.
void note_devices(State& state, LiveJob& job, const std::string& node, const v1::AttemptInventory& item) {
  NodePart& part = job.attempt->parts.at(node);
  const std::vector<int> told(item.device_indices().begin(), item.device_indices().end());
  const bool lacks = static_cast<int>(part.devices.size()) < part.placement.num_ranks;
  if (part.lost || (told.empty() ? !lacks : told == part.devices)) return;
  state.scheduler.release(job.record.uid, node);
  part.devices = claim(state, job.record.uid, node, told, part.placement.num_ranks, expected_end(job));
  if (told.empty()) return;
  part.placement.devices = told;
  for (job::Placement& placement : job.attempt->record.placements) {
    if (placement.node == node) placement.devices = told;
  }
}

// Until its backoff is over. Nobody gets what it comes back to.
void hold_back(State& state, LiveJob& job) {
  const std::string& uid = job.record.uid;
  state.scheduler.remove_job(uid);
  state.scheduler.release(uid);
  std::erase_if(job.held, [&](const auto& held) { return job.record.reserved.count(held.first) == 0; });
  for (const auto& [node, devices] : job.held) state.scheduler.occupy(uid, node, devices, expected_end(job));
  state.held_back.insert(uid);
}

void enter_queue(Step& step, LiveJob& job) {
  const job::JobRecord& record = job.record;
  scheduler::Job waiting = asked_for(record.spec);
  waiting.uid = record.uid;
  waiting.name = record.name;
  waiting.order = record.order;
  waiting.recovering = record.state == job::JobState::kRecovering;
  waiting.time_limit = time_left(step.now, job);
  waiting.reserved = job.held;
  waiting.avoided = {record.avoided_nodes.begin(), record.avoided_nodes.end()};
  step.state.scheduler.add_job(std::move(waiting));
  step.state.scheduler.release(record.uid);
  step.state.held_back.erase(record.uid);
  if (!job.held.empty() || !record.avoided_nodes.empty()) {
    step.state.choosy_until.emplace(record.uid, step.now.monotonic + step.options.reserve_grace);
  }
}

void leave_scheduler(State& state, const std::string& uid) {
  state.scheduler.remove_job(uid);
  state.scheduler.release(uid);
  state.held_back.erase(uid);
  state.choosy_until.erase(uid);
}

// A node that never comes back would have the job's other devices idle for ever, and devices that somebody holds for
// ever would keep it from those that it avoids.
void give_up_wishes(Step& step) {
  for (auto it = step.state.choosy_until.begin(); it != step.state.choosy_until.end();) {
    if (step.now.monotonic <= it->second) {
      ++it;
      continue;
    }
    LiveJob& job = step.state.jobs.at(it->first);
    it = step.state.choosy_until.erase(it);
    const bool held = !job.held.empty();
    job.record.reserved.clear();
    job.held.clear();
    const std::vector<std::string> avoided = std::exchange(job.record.avoided_nodes, {});
    step.state.scheduler.waits(job.record.uid) ? enter_queue(step, job) : hold_back(step.state, job);
    Change change;
    const std::string waited = absl::StrCat("waited ", absl::FormatDuration(step.options.reserve_grace), " for ");
    if (held) {
      add_event(step, change, job,
                {.reason = "ReservationGivenUp",
                 .message = waited + "devices beside those that it comes back to: others may have them now"});
    }
    if (!avoided.empty()) {
      add_event(step, change, job,
                {.reason = "AvoidanceGivenUp",
                 .message = absl::StrCat(waited, "other nodes than ", absl::StrJoin(avoided, ", "),
                                         ", where it failed: it may go there again")});
    }
    put_job(change, job);
    step.commit(std::move(change));
  }
}

}  // namespace titan::core
