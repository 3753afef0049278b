// Ranks that were given up while their node was silent. They may still run: their job does not end before its newest
// attempt has, and their node cannot be deleted. They save and end once they have heard of no controller for
// restart.orphan_timeout_seconds. An operator who knows that the machine is off need not wait for that.

#include "controller/core/left_behind.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::JobEvent;

constexpr double kUsualOrphanTimeout = 600;                 // Default of the worker, if the job gives none.
constexpr absl::Duration kOrphanGrace = absl::Seconds(60);  // Orphans save in this time.
constexpr absl::Duration kKillTime = absl::Seconds(30);
constexpr absl::Duration kStopTime = absl::Seconds(45);  // Time to save and be killed once the node is connected again.

absl::Duration longest_life(const LiveJob& job) {
  const double timeout = job.record.spec.restart.orphan_timeout_seconds;
  return absl::Seconds(timeout > 0 ? timeout : kUsualOrphanTimeout) + kOrphanGrace + kKillTime;
}

// Only the newest attempt counts: an older one finds itself fenced and leaves without changing anything.
bool is_left_behind(const LeftRanks& left, const LiveJob& job) {
  return !job.past.empty() && left.may_train({job.record.uid, job.past.back()->number});
}

}  // namespace

bool LeftRanks::erase(const std::string& node, const AttemptKey& key) {
  const auto found = by_node_.find(node);
  if (found == by_node_.end() || found->second.erase(key) == 0) return false;
  if (found->second.empty()) by_node_.erase(found);
  return true;
}

bool LeftRanks::bound(const std::string& node, absl::Duration until, absl::Time until_wall) {
  const auto found = by_node_.find(node);
  if (found == by_node_.end()) return false;
  for (auto& [key, left] : found->second) {
    if (until >= left.until) continue;
    left.until = until;
    left.until_wall = until_wall;
  }
  return true;
}

const LeftRanks::OfNode& LeftRanks::on(const std::string& node) const {
  static const auto* const kNone = new OfNode();
  const auto found = by_node_.find(node);
  return found == by_node_.end() ? *kNone : found->second;
}

bool LeftRanks::may_train(const std::string& node, const AttemptKey& key) const {
  const OfNode& there = on(node);
  const auto left = there.find(key);
  return left != there.end() && left->second.may_train;
}

bool LeftRanks::may_train(const AttemptKey& key) const {
  return std::any_of(by_node_.begin(), by_node_.end(), [&](const auto& left) { return may_train(left.first, key); });
}

std::vector<std::pair<std::string, AttemptKey>> LeftRanks::over(absl::Duration now) const {
  std::vector<std::pair<std::string, AttemptKey>> found;
  for (const auto& [node, left] : by_node_) {
    for (const auto& [key, what] : left) {
      if (now >= what.until) found.emplace_back(node, key);
    }
  }
  return found;
}

void leave_behind(Step& step, LiveJob& job, const std::string& node) {
  const LiveAttempt& attempt = *job.attempt;
  const int ranks = attempt.parts.at(node).placement.num_ranks;
  const Node* const known = step.state.nodes.find(node);
  const absl::Duration silent_since = known == nullptr ? step.now.monotonic : known->last_beat;
  LeftBehind left;
  left.job = job.record.name;
  left.ranks = ranks;
  left.until = std::max(silent_since + longest_life(job), step.now.monotonic);
  left.until_wall = step.now.wall + (left.until - step.now.monotonic);
  left.may_train = attempt.start_sent && attempt.exits_on(node) < ranks;
  step.state.left.add(node, job.key(), std::move(left));
  step.touch(node);
}

// Only the wall clock says how long ago that was, and it may be wrong. It never extends the full time.
void restore_left_behind(Step& step, const LiveJob& job) {
  for (const auto& attempt : job.past) {
    for (const std::string& node : attempt->left_on) {
      if (step.state.nodes.find(node) == nullptr) continue;
      const absl::Duration most = longest_life(job);
      const absl::Duration left = most - absl::Nanoseconds(step.now.wall_ns() - attempt->end_time_ns);
      if (left <= absl::ZeroDuration()) continue;
      const absl::Duration rest = std::min(left, most);
      const auto on_it = [&](const job::Placement& placement) { return placement.node == node; };
      const auto placement = std::find_if(attempt->placements.begin(), attempt->placements.end(), on_it);
      const int ranks = placement == attempt->placements.end() ? 0 : placement->num_ranks;
      step.state.left.add(node, {job.record.uid, attempt->number},
                          {job.record.name, ranks, step.now.monotonic + rest, step.now.wall + rest});
      step.touch(node);
    }
  }
}

// The node reported that they are gone, or that it cannot end them, which the caller records.
void note_end_there(Step& step, const std::string& node, const AttemptKey& key) {
  if (step.state.left.erase(node, key)) step.touch(node);
}

// The node is connected and was ordered to stop them. The wait ends even if it does not answer.
void bound_left_behind(Step& step, const std::string& node) {
  if (step.state.left.bound(node, step.now.monotonic + kStopTime, step.now.wall + kStopTime)) step.touch(node);
}

std::string where_left(const State& state, const LiveJob& job) {
  if (job.past.empty()) return "";
  const AttemptKey newest{job.record.uid, job.past.back()->number};
  std::vector<std::string> places, silent;
  absl::Time until = absl::InfinitePast();
  for (const auto& [node, left] : state.left.all()) {
    const auto there = left.find(newest);
    if (there == left.end() || !there->second.may_train) continue;
    places.push_back(absl::StrCat(counted(there->second.ranks, "rank"), " on ", node));
    if (const Node* known = state.nodes.find(node); known == nullptr || !known->speaks()) silent.push_back(node);
    until = std::max(until, there->second.until_wall);
  }
  const std::string at_most =
      absl::StrCat(" until ", absl::FormatTime(absl::RFC3339_sec, until, absl::UTCTimeZone()), " at the latest");
  if (silent.empty())
    return absl::StrCat(absl::StrJoin(places, ", "), " may still run", at_most, "; they were ordered to stop");
  return absl::StrCat(absl::StrJoin(places, ", "), " may still run", at_most,
                      "; they cannot be reached. If the machine is off, ", "`titanctl node delete --force ",
                      absl::StrJoin(silent, " "), "` ends the wait");
}

// A job whose ranks may still train is not over: it is STOPPING until they are gone for certain.
void end_or_leave(Step& step, LiveJob& job, JobEvent over, Change& change) {
  const std::string uid = job.record.uid;
  apply(job, JobEvent::kAttemptFailed);
  if (!is_left_behind(step.state.left, job)) {
    step.state.left.erase_job(uid);
    apply(job, over);
    return end_job(step, job, change);
  }
  apply(job, JobEvent::kStopRequested);
  if (step.state.left.add_job(uid)) {
    add_event(step, change, job,
              {.reason = "RanksLeftBehind", .message = where_left(step.state, job), .severity = "warning"});
  }
  step.state.queue.leave(uid);
  job.record.reserved.clear();
  job.held.clear();
  set_pending(job, "NODE_UNREACHABLE", where_left(step.state, job), change);
  put_job(change, job);
}

void check_left_behind(Step& step) {
  for (const auto& [node, key] : step.state.left.over(step.now.monotonic)) note_end_there(step, node, key);
  for (const std::string& uid : std::set<std::string>(step.state.left.jobs())) {
    LiveJob* live = step.state.jobs.find(uid);
    if (live == nullptr || live->attempt) {  // An attempt that a node still runs was adopted.
      step.state.left.erase_job(uid);
      continue;
    }
    LiveJob& job = *live;
    Change change;
    if (is_left_behind(step.state.left, job)) {
      set_pending(job, "NODE_UNREACHABLE", where_left(step.state, job), change);
      step.commit(std::move(change));
      continue;
    }
    const bool failed = !job.record.failure_reason.empty();
    end_or_leave(step, job, failed ? JobEvent::kGaveUp : JobEvent::kStopped, change);
    step.commit(std::move(change));
    leave_queue(step.state, job);
  }
}

// The operator says that nothing runs there any more.
void give_up_node(Step& step, const std::string& node) {
  for (const std::string& uid : step.state.placed.on(node)) {
    LiveJob* live = step.state.jobs.find(uid);
    if (live != nullptr && live->attempt && !live->attempt->parts.at(node).ended) {
      lose_part(step, *live, node);
    }
  }
  step.state.left.drop(node);
  for (const auto& [key, stray] : step.state.strays.take(node)) {
    step.state.queue.release(stray_owner(key), node);
  }
  step.state.cycles.request();
}

}  // namespace titan::core
