// Attempts on nodes that are not the present one of a live job. What this store knows and has left behind is stopped;
// what it has never heard of is somebody's work, and is listed until somebody decides.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "controller/reconcile/reconciler.h"

namespace titan::reconcile {
namespace {

using Phase = v1::AttemptReport;

constexpr absl::Duration kSaveTime = absl::Seconds(30);

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

bool Reconciler::knows(const std::string& uid) const {
  return jobs_.count(uid) > 0 || deleted_.contains(uid) || published_.find(uid) != nullptr;
}

Stray& Reconciler::stray_of(cluster::Node& node, const v1::AttemptId& id) {
  return strays_[node.record.name][{id.job_uid(), id.number()}];
}

void Reconciler::take_stray(cluster::Node& node, const v1::AttemptId& id, v1::AttemptReport::Phase phase) {
  if (node.session == nullptr) return;
  const AttemptKey key{id.job_uid(), id.number()};
  const bool ended = phase == Phase::ENDED || phase == Phase::REFUSED;
  Stray& stray = stray_of(node, id);
  if (!ended) stray.devices = std::max(stray.devices, static_cast<int>(stray.ranks.size()));
  const bool unknown = !knows(key.first);
  if (ended && (!unknown || stray.dismissed)) {
    drop_stray(node.record.name, key);
    return forget(key, node.record.name);
  }
  stray.ended = ended;
  if (ended) stray.devices = 0;
  if (unknown) return list_unknown(node, key, stray);
  stop_stray(node, key, stray);
}

// An attempt of a job that is over, or that another attempt has replaced. What is newer than this store's records may
// hold work that no checkpoint has yet.
void Reconciler::stop_stray(cluster::Node& node, const AttemptKey& key, Stray& stray) {
  const auto live = jobs_.find(key.first);
  stray.unknown = false;
  stray.saving = live != jobs_.end() && key.second > newest_recorded(live->second);
  node.session->send(stop_message(key, stray.saving ? kSaveTime : absl::ZeroDuration(), "STALE_ATTEMPT"));
}

void Reconciler::list_unknown(cluster::Node& node, const AttemptKey& key, Stray& stray) {
  if (std::exchange(stray.unknown, true)) return;
  Change change;
  add_node_event(change, node, "UnknownAttempt",
                 absl::StrCat("attempt ", key.second, " of job ", stray.job.empty() ? "without a name" : stray.job,
                              " (uid ", key.first, ") ", stray.ended ? "has ended" : "runs",
                              " here and this controller has no such job: left alone; `titanctl node stop ",
                              node.record.name, " --unknown ", key.first, "` ends it"),
                 "warning");
  put_node(change, node);
  commit(std::move(change));
}

void Reconciler::drop_stray(const std::string& node, const AttemptKey& key) {
  const auto strays = strays_.find(node);
  if (strays == strays_.end() || strays->second.erase(key) == 0) return;
  if (strays->second.empty()) strays_.erase(strays);
  schedule_requested_ = true;  // Its devices are free; the next tick looks.
}

int Reconciler::devices_of_strays(const std::string& node) const {
  const auto strays = strays_.find(node);
  int devices = 0;
  if (strays == strays_.end()) return 0;
  for (const auto& [key, stray] : strays->second) devices += stray.devices;
  return devices;
}

std::set<std::string> Reconciler::jobs_that_still_save() const {
  std::set<std::string> uids;
  for (const auto& [name, strays] : strays_) {
    const cluster::Node* node = nodes_.find(name);
    if (node == nullptr || !node->can_take_ranks()) continue;  // Its word would be waited for in vain.
    for (const auto& [key, stray] : strays) {
      if (stray.saving && !stray.ended) uids.insert(key.first);
    }
  }
  return uids;
}

void Reconciler::stop_unknown(const std::string& name, const std::string& uid, absl::Duration grace,
                              Done<NodeView> done) {
  sync::Lock lock(mutex_);
  cluster::Node* node = nodes_.find(name);
  if (node == nullptr) {
    return done(
        rpc::error(absl::StatusCode::kNotFound, "NODE_NOT_FOUND", absl::StrCat("no node ", name), {{"node", name}}));
  }
  std::vector<AttemptKey> keys;
  for (const auto& [key, stray] : strays_[name]) {
    if (stray.unknown && key.first == uid) keys.push_back(key);
  }
  if (keys.empty()) {
    return done(rpc::error(absl::StatusCode::kNotFound, "JOB_NOT_UNKNOWN",
                           absl::StrCat("node ", name, " runs no attempt of an unknown job with uid ", uid,
                                        "; `titanctl node describe ", name, "` lists them"),
                           {{"node", name}, {"job_uid", uid}}));
  }
  if (node->session == nullptr) {
    return done(rpc::error(absl::StatusCode::kUnavailable, "NODE_UNREACHABLE",
                           absl::StrCat("node ", name, " cannot be reached now"), {{"node", name}}));
  }
  Change change;
  for (const AttemptKey& key : keys) {
    Stray& stray = strays_[name][key];
    stray.dismissed = true;
    add_node_event(change, *node, "UnknownAttemptStopped",
                   absl::StrCat("attempt ", key.second, " of job ", stray.job, " (uid ", key.first,
                                ") is ended on request, saving first"),
                   "info");
  }
  put_node(change, *node);
  change.then.push_back([this, name, keys, grace, done = std::move(done)] {
    cluster::Node* node = nodes_.find(name);
    for (const AttemptKey& key : keys) {
      const auto strays = strays_.find(name);
      if (node->session == nullptr || strays == strays_.end() || strays->second.count(key) == 0) continue;
      if (strays->second.at(key).ended) {
        drop_stray(name, key);
        forget(key, name);
      } else {
        node->session->send(stop_message(key, grace, "STOPPED_BY_OPERATOR"));
      }
    }
    done(node_view(*node));
  });
  commit(std::move(change));
}

}  // namespace titan::reconcile
