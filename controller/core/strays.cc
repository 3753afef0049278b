// Attempts on nodes that are not the present one of a live job. What this store knows and has left behind is stopped;
// what it has never heard of is somebody's work, and is listed until somebody decides.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/testing/planted.h"
#include "common/service/rpc/error.h"
#include "controller/core/core.h"

namespace titan::core {
namespace {

using Phase = v1::AttemptReport;

constexpr absl::Duration kSaveTime = absl::Seconds(30);
// To be killed in, if need be. Then its job goes on: the next attempt fences the old one off its dump folder, and the
// devices of the old one stay taken while it lives.
constexpr absl::Duration kKillTime = absl::Seconds(15);

v1::ControllerMessage stop_message(const AttemptKey& key, absl::Duration grace, const std::string& reason) {
  v1::ControllerMessage message;
  v1::Stop* stop = message.mutable_stop();
  stop->mutable_id()->set_job_uid(key.first);
  stop->mutable_id()->set_number(key.second);
  stop->set_save(grace > absl::ZeroDuration());
  stop->set_grace_milliseconds(absl::ToInt64Milliseconds(grace));
  stop->set_reason(reason);
  return message;
}

int newest_recorded(const LiveJob& job) {
  if (job.attempt) return job.attempt->record.number;
  return job.past.empty() ? 0 : job.past.back()->number;
}

}  // namespace

bool Core::knows(const std::string& uid) const {
  return jobs_.count(uid) > 0 || over_.contains(uid) || deleted_.contains(uid);
}

Stray& Core::stray_of(Node& node, const v1::AttemptId& id) {
  touch(node.record.name);
  return strays_[node.record.name][{id.job_uid(), id.number()}];
}

// `holds`: it is refused, and a process of it that is not gone has its devices all the same. `overdue`: the node says
// that it has not ended what it was told to stop; were it told again, it would say that again, without end.
void Core::take_stray(Node& node, const v1::AttemptId& id, v1::AttemptReport::Phase phase, bool holds, bool overdue) {
  if (node.session == 0) return;
  const AttemptKey key{id.job_uid(), id.number()};
  const bool ended = phase == Phase::ENDED || phase == Phase::REFUSED;
  Stray& stray = stray_of(node, id);
  if (!ended) stray.devices = std::max(stray.devices, static_cast<int>(stray.ranks.size()));
  if (holds && stray.devices == 0) {
    stray.device_indices = recorded_devices(key, node.record.name);
    stray.devices = static_cast<int>(stray.device_indices.size());
  }
  const bool unknown = !knows(key.first);
  stray.ended = ended;
  if (ended || overdue) note_end_there(node.record.name, key);  // What it cannot end, it has said.
  if (ended && (!unknown || stray.dismissed)) {
    holds ? claim_stray(node.record.name, key, stray) : drop_stray(node.record.name, key);
    if (std::optional<Send> told = forget(key, node.record.name)) effects_.now.sends.push_back(*std::move(told));
    return;
  }
  if (ended && !holds) stray.devices = 0;
  claim_stray(node.record.name, key, stray);
  if (unknown && !testing::planted(testing::Bug::kUnknownAttemptIsStopped)) return list_unknown(node, key, stray);
  if (!overdue) stop_stray(node, key, stray);
}

// An attempt of a job that is over, or that another attempt has replaced. What is newer than this store's records may
// hold work that no checkpoint has yet.
void Core::stop_stray(Node& node, const AttemptKey& key, Stray& stray) {
  const auto live = jobs_.find(key.first);
  stray.unknown = false;
  const bool saves = live != jobs_.end() && key.second > newest_recorded(live->second) &&
                     key.second <= live->second.record.attempts;  // Else nobody believes that it is there.
  if (saves && !stray.saving) stray.saves_until = now_.monotonic + kSaveTime + kKillTime;
  stray.saving = saves;
  if (may_still_save(key))
    return send(node.record.name, stop_message(key, kSaveTime, live->second.record.intent.cause));
  send(node.record.name, stop_message(key, saves ? kSaveTime : absl::ZeroDuration(), "STALE_ATTEMPT"));
}

// It speaks again in the session in which it fell silent: no inventory and, while an attempt prepares, no beat tells of
// what it has.
void Core::stop_lost(const std::string& node) {
  const auto left = left_behind_.find(node);
  if (left == left_behind_.end()) return;
  for (const auto& [key, what] : left->second) {
    if (may_still_save(key)) {
      send(node, stop_message(key, kSaveTime, jobs_.at(key.first).record.intent.cause));
    } else {
      send(node, stop_message(key, absl::ZeroDuration(), "STALE_ATTEMPT"));
    }
  }
  bound_left_behind(node);
}

// Whether it is the newest attempt of a job that was told to save and end: nothing has taken its dump folder since.
bool Core::may_still_save(const AttemptKey& key) const {
  const auto live = jobs_.find(key.first);
  if (live == jobs_.end() || live->second.attempt || live->second.past.empty()) return false;
  const LiveJob& job = live->second;
  return job.stops() && job.record.intent.save && job.past.back()->number == key.second;
}

// Likewise what an operator wants gone, in a node's next session.
void Core::stop_dismissed(const std::string& node, const AttemptKey& key) {
  const auto strays = strays_.find(node);
  if (strays == strays_.end() || strays->second.count(key) == 0) return;
  const Stray& stray = strays->second.at(key);
  if (stray.dismissed && !stray.ended) send(node, stop_message(key, stray.grace, "STOPPED_BY_OPERATOR"));
}

void Core::list_unknown(Node& node, const AttemptKey& key, Stray& stray) {
  if (std::exchange(stray.unknown, true)) return;
  Change change;
  add_node_event(change, node, "UnknownAttempt",
                 absl::StrCat("attempt ", key.second, " of job ", stray.job.empty() ? "without a name" : stray.job,
                              " (uid ", key.first, ") ", stray.ended ? "has ended" : "runs",
                              " here and this controller has no such job: left alone; `titanctl node stop ",
                              node.record.name, " --unknown ", key.first, "` ends it"),
                 "warning", "", stray.job);
  put_node(change, node);
  commit(std::move(change));
}

void Core::drop_stray(const std::string& node, const AttemptKey& key) {
  note_end_there(node, key);
  const auto strays = strays_.find(node);
  if (strays == strays_.end() || strays->second.erase(key) == 0) return;
  touch(node);
  if (!testing::planted(testing::Bug::kFreedDevicesStayTaken)) scheduler_.release(stray_owner(key), node);
  if (strays->second.empty()) strays_.erase(strays);
  schedule_requested_ = true;  // Its devices are free; the next tick looks.
}

// Whoever else comes to the node does not get what it has there.
void Core::claim_stray(const std::string& node, const AttemptKey& key, Stray& stray) {
  if (testing::planted(testing::Bug::kReturningNodeIsEmpty)) return;
  if (stray.device_indices.empty() && stray.devices > 0) stray.device_indices = recorded_devices(key, node);
  if (stray.devices > 0 && !stray.device_indices.empty()) stray.devices = static_cast<int>(stray.device_indices.size());
  const bool told = static_cast<int>(stray.claimed.size()) == stray.devices;
  if (told && (stray.devices == 0 || stray.device_indices.empty() || stray.claimed == stray.device_indices)) return;
  scheduler_.release(stray_owner(key), node);
  stray.claimed.clear();
  if (stray.devices > 0) stray.claimed = claim(stray_owner(key), node, stray.device_indices, stray.devices);
}

// Where the controller had placed it; empty: not known.
std::vector<int> Core::recorded_devices(const AttemptKey& key, const std::string& node) const {
  const job::AttemptRecord* const attempt = recorded(key);
  if (attempt == nullptr) return {};
  for (const job::Placement& placement : attempt->placements) {
    if (placement.node == node) return placement.devices;
  }
  return {};
}

int Core::devices_of_strays(const std::string& node) const {
  const auto strays = strays_.find(node);
  int devices = 0;
  if (strays == strays_.end()) return 0;
  for (const auto& [key, stray] : strays->second) devices += stray.devices;
  return devices;
}

std::set<std::string> Core::jobs_that_still_save() const {
  std::set<std::string> uids;
  for (const auto& [name, strays] : strays_) {
    const Node* node = nodes_.find(name);
    if (node == nullptr || !node->speaks()) continue;  // Its word would be waited for in vain.
    for (const auto& [key, stray] : strays) {
      if (stray.saving && !stray.ended && now_.monotonic < stray.saves_until) uids.insert(key.first);
    }
  }
  return uids;
}

void Core::take(const StopUnknown& input) {
  const std::string& name = input.node;
  Node* node = nodes_.find(name);
  if (node == nullptr) return refuse(input.request, no_such_node(name));
  std::vector<AttemptKey> keys;
  for (const auto& [key, stray] : strays_[name]) {
    if (stray.unknown && key.first == input.uid) keys.push_back(key);
  }
  if (keys.empty()) {
    return refuse(input.request, rpc::error(absl::StatusCode::kNotFound, "JOB_NOT_UNKNOWN",
                                            absl::StrCat("node ", name, " runs no attempt of an unknown job with uid ",
                                                         input.uid, "; `titanctl node describe ", name, "` lists them"),
                                            {{"node", name}, {"job_uid", input.uid}}));
  }
  if (node->session == 0) {
    return refuse(input.request, rpc::error(absl::StatusCode::kUnavailable, "NODE_UNREACHABLE",
                                            absl::StrCat("node ", name, " cannot be reached now"), {{"node", name}}));
  }
  Change change;
  for (const AttemptKey& key : keys) {
    Stray& stray = strays_[name][key];
    stray.dismissed = true;
    stray.grace = input.grace;
    add_node_event(change, *node, "UnknownAttemptStopped",
                   absl::StrCat("attempt ", key.second, " of job ", stray.job, " (uid ", key.first,
                                ") is ended on request, saving first"),
                   "info", input.actor, stray.job);
  }
  put_node(change, *node);
  expect(change, Dismissed{input, keys});
  commit(std::move(change));
}

void Core::go_on(const Dismissed& dismissed, const absl::Status& status) {
  const StopUnknown& asked = dismissed.asked;
  if (!status.ok()) return refuse(asked.request, status);
  const Node* node = nodes_.find(asked.node);
  if (node == nullptr) return refuse(asked.request, no_such_node(asked.node));  // Deleted meanwhile.
  for (const AttemptKey& key : dismissed.keys) {
    const auto strays = strays_.find(asked.node);
    if (session_of(asked.node) == 0 || strays == strays_.end() || strays->second.count(key) == 0) continue;
    if (strays->second.at(key).ended) {
      drop_stray(asked.node, key);
      if (std::optional<Send> told = forget(key, asked.node)) effects_.now.sends.push_back(*std::move(told));
    } else {
      stop_dismissed(asked.node, key);
    }
  }
  Reply& reply = effects_.now.replies.emplace_back();
  reply.request = asked.request;
  reply.node = node_view(*node);
}

}  // namespace titan::core
