// Ranks that were given up while their node was silent. They may still run: their job has not ended before its newest
// attempt has, and their node is not off the list. They end at the latest when they have heard of no controller for
// restart.orphan_timeout_seconds; an operator who knows that the machine is off need not wait for that.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/counted.h"
#include "controller/core/core.h"

namespace titan::core {
namespace {

using job::JobEvent;

constexpr double kUsualOrphanTimeout = 600;                 // A worker's own, where the job gives none.
constexpr absl::Duration kOrphanGrace = absl::Seconds(60);  // In which orphans save.
constexpr absl::Duration kKillTime = absl::Seconds(30);
constexpr absl::Duration kToldTime = absl::Seconds(45);  // To save and be killed in, once the node speaks again.

absl::Duration longest_life(const LiveJob& job) {
  const double timeout = job.record.spec.restart.orphan_timeout_seconds;
  return absl::Seconds(timeout > 0 ? timeout : kUsualOrphanTimeout) + kOrphanGrace + kKillTime;
}

}  // namespace

void Core::leave_behind(LiveJob& job, const std::string& node) {
  const LiveAttempt& attempt = *job.attempt;
  const int ranks = attempt.parts.at(node).placement.num_ranks;
  const Node* const known = nodes_.find(node);
  const absl::Duration silent_since = known == nullptr ? now_.monotonic : known->last_beat;
  LeftBehind& left = left_behind_[node][job.key()];
  left.job = job.record.name;
  left.ranks = ranks;
  left.until = std::max(silent_since + longest_life(job), now_.monotonic);
  left.until_wall = now_.wall + (left.until - now_.monotonic);
  left.may_train = attempt.start_sent && attempt.exits_on(node) < ranks;
  touch(node);
}

// The wall clock alone knows how long that was ago, and it may be wrong: it gives nothing beyond what there was.
void Core::restore_left_behind(const LiveJob& job) {
  for (const auto& attempt : job.past) {
    for (const std::string& node : attempt->left_on) {
      if (nodes_.find(node) == nullptr) continue;
      const absl::Duration most = longest_life(job);
      const absl::Duration left = most - absl::Nanoseconds(now_ns() - attempt->end_time_ns);
      if (left <= absl::ZeroDuration()) continue;
      const absl::Duration rest = std::min(left, most);
      const auto on_it = [&](const job::Placement& placement) { return placement.node == node; };
      const auto placement = std::find_if(attempt->placements.begin(), attempt->placements.end(), on_it);
      const int ranks = placement == attempt->placements.end() ? 0 : placement->num_ranks;
      left_behind_[node][{job.record.uid, attempt->number}] = {job.record.name, ranks, now_.monotonic + rest,
                                                               now_.wall + rest};
      touch(node);
    }
  }
}

// The node has said that they are gone, or that it cannot end them, which is told elsewhere.
void Core::note_end_there(const std::string& node, const AttemptKey& key) {
  const auto left = left_behind_.find(node);
  if (left == left_behind_.end() || left->second.erase(key) == 0) return;
  if (left->second.empty()) left_behind_.erase(left);
  touch(node);
}

// The node speaks and has been told to stop them. What it does not answer is not waited for without end.
void Core::bound_left_behind(const std::string& node) {
  const auto left = left_behind_.find(node);
  if (left == left_behind_.end()) return;
  for (auto& [key, what] : left->second) {
    const absl::Duration until = now_.monotonic + kToldTime;
    if (until >= what.until) continue;
    what.until = until;
    what.until_wall = now_.wall + kToldTime;
  }
  touch(node);
}

bool Core::may_train_there(const std::string& node, const AttemptKey& key) const {
  const auto left = left_behind_.find(node);
  if (left == left_behind_.end()) return false;
  const auto there = left->second.find(key);
  return there != left->second.end() && there->second.may_train;
}

// The newest attempt alone counts: an older one finds itself fenced and leaves with nothing changed.
bool Core::is_left_behind(const LiveJob& job) const {
  if (job.past.empty()) return false;
  const AttemptKey newest{job.record.uid, job.past.back()->number};
  return std::any_of(left_behind_.begin(), left_behind_.end(),
                     [&](const auto& left) { return may_train_there(left.first, newest); });
}

std::string Core::where_left(const LiveJob& job) const {
  if (job.past.empty()) return "";
  const AttemptKey newest{job.record.uid, job.past.back()->number};
  std::vector<std::string> places, silent;
  absl::Time until = absl::InfinitePast();
  for (const auto& [node, left] : left_behind_) {
    const auto there = left.find(newest);
    if (there == left.end() || !there->second.may_train) continue;
    places.push_back(absl::StrCat(counted(there->second.ranks, "rank"), " on ", node));
    if (const Node* known = nodes_.find(node); known == nullptr || !known->speaks()) silent.push_back(node);
    until = std::max(until, there->second.until_wall);
  }
  const std::string at_most =
      absl::StrCat(" until ", absl::FormatTime(absl::RFC3339_sec, until, absl::UTCTimeZone()), " at the latest");
  if (silent.empty()) return absl::StrCat(absl::StrJoin(places, ", "), " may still run,", at_most, ": told to stop");
  return absl::StrCat(absl::StrJoin(places, ", "), " may still run,", at_most,
                      ": cannot be reached. If the machine is off, ", "`titanctl node delete --force ",
                      absl::StrJoin(silent, " "), "` ends the wait");
}

// A job whose ranks may still train is not over: it is STOPPING until they cannot be there any more.
void Core::end_or_leave(LiveJob& job, JobEvent over, Change& change) {
  const std::string uid = job.record.uid;
  apply(job, JobEvent::kAttemptFailed);
  if (!is_left_behind(job)) {
    leaving_.erase(uid);
    apply(job, over);
    return end_job(job, change);
  }
  apply(job, JobEvent::kStopRequested);
  if (leaving_.insert(uid).second) {
    add_event(change, job, {.reason = "RanksLeftBehind", .message = where_left(job), .severity = "warning"});
  }
  leave_scheduler(uid);
  job.record.reserved.clear();
  job.held.clear();
  set_pending(job, "NODE_UNREACHABLE", where_left(job), change);
  put_job(change, job);
}

void Core::check_left_behind() {
  std::vector<std::pair<std::string, AttemptKey>> over;
  for (const auto& [node, left] : left_behind_) {
    for (const auto& [key, what] : left) {
      if (now_.monotonic >= what.until) over.emplace_back(node, key);
    }
  }
  for (const auto& [node, key] : over) note_end_there(node, key);
  for (const std::string& uid : std::set<std::string>(leaving_)) {
    const auto live = jobs_.find(uid);
    if (live == jobs_.end() || live->second.attempt) {  // One that a node still runs was adopted.
      leaving_.erase(uid);
      continue;
    }
    LiveJob& job = live->second;
    Change change;
    if (is_left_behind(job)) {
      set_pending(job, "NODE_UNREACHABLE", where_left(job), change);
      commit(std::move(change));
      continue;
    }
    const bool failed = !job.record.failure_reason.empty();
    end_or_leave(job, failed ? JobEvent::kGaveUp : JobEvent::kStopped, change);
    commit(std::move(change));
    leave_queue(job);
  }
}

// An operator says that the machine is off: nothing runs there any more.
void Core::give_up_node(const std::string& node) {
  for (const std::string& uid : jobs_of(node)) {
    const auto live = jobs_.find(uid);
    if (live != jobs_.end() && live->second.attempt && !live->second.attempt->parts.at(node).ended) {
      lose_part(live->second, node);
    }
  }
  left_behind_.erase(node);
  if (const auto strays = strays_.extract(node)) {
    for (const auto& [key, stray] : strays.mapped()) scheduler_.release(stray_owner(key), node);
  }
  schedule_requested_ = true;
}

}  // namespace titan::core
