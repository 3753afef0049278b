// Attempts on nodes that are not the current one of a live job, or whose part there was given up. Attempts of known
// jobs are stopped. An attempt of an unknown job is somebody's work: it is listed until an operator decides.

#include "controller/core/strays.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr absl::Duration kSaveTime = absl::Seconds(30);
// Time to be killed, if need be. After it the job continues: the next attempt fences the old one off its dump folder,
// and the devices of the old one stay taken while it lives.
constexpr absl::Duration kKillTime = absl::Seconds(15);

Stop stop_within(const AttemptKey& key, absl::Duration grace, const std::string& reason) {
  return {.attempt = key, .save = grace > absl::ZeroDuration(), .grace = grace, .reason = reason};
}

int newest_recorded(const LiveJob& job) {
  if (job.attempt) return job.attempt->record.number;
  return job.past.empty() ? 0 : job.past.back()->number;
}

// True for the newest attempt of a job that was ordered to save and end: nothing has taken its dump folder since.
bool may_still_save(const Jobs& jobs, const AttemptKey& key) {
  const LiveJob* live = jobs.find(key.first);
  if (live == nullptr || live->attempt || live->past.empty()) return false;
  const LiveJob& job = *live;
  return job.stops() && job.record.intent.save && job.past.back()->number == key.second;
}

// Stops an attempt of a job that has ended, or an attempt that another one has replaced. One that is newer than this
// store's records may hold work that no checkpoint has yet, so it saves first.
void stop_stray(Step& step, Node& node, const AttemptKey& key, Stray& stray) {
  LiveJob* live = step.state.jobs.find(key.first);
  stray.unknown = false;
  const bool saves = live != nullptr && key.second > newest_recorded(*live) &&
                     key.second <= live->record.attempts;  // A higher number was not believed.
  if (saves && !stray.saving) stray.saves_until = step.now.monotonic + kSaveTime + kKillTime;
  stray.saving = saves;
  if (may_still_save(step.state.jobs, key))
    return step.send(node.record.name, stop_within(key, kSaveTime, live->record.intent.cause));
  step.send(node.record.name, stop_within(key, saves ? kSaveTime : absl::ZeroDuration(), "STALE_ATTEMPT"));
}

void list_unknown(Step& step, Node& node, const AttemptKey& key, Stray& stray) {
  if (std::exchange(stray.unknown, true)) return;
  Change change;
  add_node_event(step, change, node, "UnknownAttempt",
                 absl::StrCat("attempt ", key.second, " of job ", stray.job.empty() ? "without a name" : stray.job,
                              " (uid ", key.first, ") ", stray.ended ? "has ended" : "runs",
                              " here, but this controller has no such job, so it is not touched; `titanctl node stop ",
                              node.record.name, " --unknown ", key.first, "` ends it"),
                 "warning", "", stray.job);
  put_node(step, change, node);
  step.commit(std::move(change));
}

}  // namespace

bool Strays::erase(const std::string& node, const AttemptKey& key) {
  const auto found = by_node_.find(node);
  if (found == by_node_.end() || found->second.erase(key) == 0) return false;
  if (found->second.empty()) by_node_.erase(found);
  return true;
}

Strays::OfNode Strays::take(const std::string& node) {
  auto taken = by_node_.extract(node);
  return taken.empty() ? OfNode() : std::move(taken.mapped());
}

Stray* Strays::find(const std::string& node, const AttemptKey& key) {
  const auto found = by_node_.find(node);
  if (found == by_node_.end()) return nullptr;
  const auto stray = found->second.find(key);
  return stray == found->second.end() ? nullptr : &stray->second;
}

const Strays::OfNode& Strays::on(const std::string& node) const {
  static const auto* const kNone = new OfNode();
  const auto found = by_node_.find(node);
  return found == by_node_.end() ? *kNone : found->second;
}

int Strays::devices_on(const std::string& node) const {
  int devices = 0;
  for (const auto& [key, stray] : on(node)) devices += stray.devices;
  return devices;
}

bool knows(const State& state, const std::string& uid) {
  return state.jobs.find(uid) != nullptr || state.jobs.find_over(uid) != nullptr || state.deletions.contains(uid);
}

Stray& stray_of(Step& step, Node& node, const AttemptKey& key) {
  step.touch(node.record.name);
  return step.state.strays.add(node.record.name, key);
}

// `holds`: the attempt holds devices, even if it was refused: one of its processes is not gone. `overdue`: the node
// reports that it could not stop it. A second Stop would only get the same report, without end.
void take_stray(Step& step, Node& node, const AttemptKey& key, PartPhase phase, bool holds, bool overdue) {
  if (node.session == 0) return;
  const bool ended = phase == PartPhase::kEnded || phase == PartPhase::kRefused;
  Stray& stray = stray_of(step, node, key);
  if (!ended) stray.devices = std::max(stray.devices, static_cast<int>(stray.ranks.size()));
  if (holds && stray.devices == 0) {
    stray.device_indices = recorded_devices(step.state.jobs, key, node.record.name);
    stray.devices = static_cast<int>(stray.device_indices.size());
  }
  const bool unknown = !knows(step.state, key.first);
  stray.ended = ended;
  if (ended || overdue) note_end_there(step, node.record.name, key);  // It is gone, or its node cannot end it.
  if (ended && (!unknown || stray.dismissed)) {
    holds ? claim_stray(step.state, node.record.name, key, stray) : drop_stray(step, node.record.name, key);
    if (std::optional<Send> order = forget(step.state.nodes, key, node.record.name))
      step.effects.now.sends.push_back(*std::move(order));
    return;
  }
  if (ended && !holds) stray.devices = 0;
  claim_stray(step.state, node.record.name, key, stray);
  if (unknown) return list_unknown(step, node, key, stray);
  if (!overdue) stop_stray(step, node, key, stray);
}

// The node is heard again in the session in which it fell silent. It sends no inventory then and, while an attempt
// prepares, no beat that shows what it has.
void stop_lost(Step& step, const std::string& node) {
  for (const auto& [key, left] : step.state.left.on(node)) {
    if (may_still_save(step.state.jobs, key)) {
      step.send(node, stop_within(key, kSaveTime, step.state.jobs.at(key.first).record.intent.cause));
    } else {
      step.send(node, stop_within(key, absl::ZeroDuration(), "STALE_ATTEMPT"));
    }
  }
  bound_left_behind(step, node);
}

// A node's next session gets the command again.
void stop_dismissed(Step& step, const std::string& node, const AttemptKey& key) {
  const Stray* stray = step.state.strays.find(node, key);
  if (stray == nullptr || !stray->dismissed || stray->ended) return;
  step.send(node, stop_within(key, stray->grace, "STOPPED_BY_OPERATOR"));
}

void drop_stray(Step& step, const std::string& node, const AttemptKey& key) {
  note_end_there(step, node, key);
  if (!step.state.strays.erase(node, key)) return;
  step.touch(node);
  step.state.queue.release(stray_owner(key), node);
  step.state.cycles.request();  // Its devices are free: the next tick schedules.
}

// Other owners on the node do not get the stray's devices.
void claim_stray(State& state, const std::string& node, const AttemptKey& key, Stray& stray) {
  if (stray.device_indices.empty() && stray.devices > 0) stray.device_indices = recorded_devices(state.jobs, key, node);
  if (stray.devices > 0 && !stray.device_indices.empty()) stray.devices = static_cast<int>(stray.device_indices.size());
  const bool complete = static_cast<int>(stray.claimed.size()) == stray.devices;
  if (complete && (stray.devices == 0 || stray.device_indices.empty() || stray.claimed == stray.device_indices)) return;
  state.queue.release(stray_owner(key), node);
  stray.claimed.clear();
  if (stray.devices > 0) stray.claimed = state.queue.claim(stray_owner(key), node, stray.device_indices, stray.devices);
}

std::vector<int> recorded_devices(const Jobs& jobs, const AttemptKey& key, const std::string& node) {
  const job::AttemptRecord* const attempt = recorded(jobs, key);
  if (attempt == nullptr) return {};
  for (const job::Placement& placement : attempt->placements) {
    if (placement.node == node) return placement.devices;
  }
  return {};
}

std::set<std::string> jobs_that_still_save(const State& state, const Now& now) {
  std::set<std::string> uids;
  for (const auto& [name, strays] : state.strays.all()) {
    const Node* node = state.nodes.find(name);
    if (node == nullptr || !node->speaks()) continue;  // A silent node would be waited for in vain.
    for (const auto& [key, stray] : strays) {
      if (stray.saving && !stray.ended && now.monotonic < stray.saves_until) uids.insert(key.first);
    }
  }
  return uids;
}

void take(Step& step, const StopUnknown& input) {
  const std::string& name = input.node;
  Node* node = step.state.nodes.find(name);
  if (node == nullptr) return step.refuse(input.request, no_such_node(name));
  std::vector<AttemptKey> keys;
  for (const auto& [key, stray] : step.state.strays.on(name)) {
    if (stray.unknown && key.first == input.uid) keys.push_back(key);
  }
  if (keys.empty()) {
    return step.refuse(input.request,
                       rpc::error(absl::StatusCode::kNotFound, "JOB_NOT_UNKNOWN",
                                  absl::StrCat("node ", name, " runs no attempt of an unknown job with uid ", input.uid,
                                               "; `titanctl node describe ", name, "` lists them"),
                                  {{"node", name}, {"job_uid", input.uid}}));
  }
  if (node->session == 0) {
    return step.refuse(input.request,
                       rpc::error(absl::StatusCode::kUnavailable, "NODE_UNREACHABLE",
                                  absl::StrCat("node ", name, " cannot be reached now"), {{"node", name}}));
  }
  Change change;
  for (const AttemptKey& key : keys) {
    Stray& stray = step.state.strays.add(name, key);
    stray.dismissed = true;
    stray.grace = input.grace;
    add_node_event(step, change, *node, "UnknownAttemptStopped",
                   absl::StrCat("attempt ", key.second, " of job ", stray.job, " (uid ", key.first,
                                ") is being stopped on request, saving first"),
                   "info", input.actor, stray.job);
  }
  put_node(step, change, *node);
  step.expect(change, Dismissed{input, keys});
  step.commit(std::move(change));
}

void on_outcome(Step& step, const Dismissed& dismissed, const absl::Status& status) {
  const StopUnknown& asked = dismissed.asked;
  if (!status.ok()) return step.refuse(asked.request, status);
  const Node* node = step.state.nodes.find(asked.node);
  if (node == nullptr) return step.refuse(asked.request, no_such_node(asked.node));  // It was deleted meanwhile.
  for (const AttemptKey& key : dismissed.keys) {
    const Stray* stray = step.state.strays.find(asked.node, key);
    if (session_of(step.state.nodes, asked.node) == 0 || stray == nullptr) continue;
    if (stray->ended) {
      drop_stray(step, asked.node, key);
      if (std::optional<Send> order = forget(step.state.nodes, key, asked.node))
        step.effects.now.sends.push_back(*std::move(order));
    } else {
      stop_dismissed(step, asked.node, key);
    }
  }
  Reply& reply = step.effects.now.replies.emplace_back();
  reply.request = asked.request;
  reply.node = node_view(step.state, *node);
}

}  // namespace titan::core
