// Compares what runs on a node that has registered with what should run there.

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/id.h"
#include "common/base/text/utf8.h"
#include "common/rank_protocol/name_list.h"
#include "controller/core/node_table.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::JobEvent;

std::vector<const AttemptInventory*> newest_of_each_job(const Registration& hello) {
  std::map<std::string, const AttemptInventory*> newest;
  for (const AttemptInventory& item : hello.inventory) {
    const AttemptInventory*& best = newest[item.attempt.first];
    if (best == nullptr || best->attempt.second < item.attempt.second) best = &item;
  }
  std::vector<const AttemptInventory*> items;
  for (const auto& [uid, item] : newest) items.push_back(item);
  return items;
}

int64_t last_step(const AttemptInventory& item) {
  int64_t step = 0;
  for (const RankStatus& rank : item.ranks) step = std::max(step, rank.step);
  return step;
}

std::string what_of(const AttemptKey& key) {
  return absl::StrCat("attempt ", key.second, " of job uid ", key.first, " as its own, which is placed elsewhere");
}

Stray described(const AttemptInventory& item) {
  Stray stray;
  stray.job = item.job;
  for (const RankStatus& rank : item.ranks) stray.ranks.push_back(rank.rank);
  stray.devices = std::clamp(item.devices, 0, kMaxDevices);
  stray.device_indices = item.device_indices;
  stray.start_time_ns = item.start_time_ns;
  stray.step = last_step(item);
  return stray;
}

// Returns where the attempt's ranks are, from the node's report. Empty if it cannot be read or names more than `most`
// ranks.
std::vector<job::Placement> placements_of(const AttemptInventory& item, int most) {
  std::vector<job::Placement> placements;
  int ranks = 0;
  for (const rank_protocol::NodeRow& row : item.nodes) {
    if (row.ranks < 1) return {};
    const auto names = rank_protocol::unfold_names(row.names, static_cast<size_t>((most - ranks) / row.ranks));
    if (!names.ok()) return {};
    for (const std::string& name : *names) {
      placements.push_back({name, ranks, row.ranks, {}});
      ranks += row.ranks;
    }
  }
  return placements;
}

// True if all its parts are known, and its ranks run or have ended.
bool can_be_adopted(const AttemptInventory& item, const std::vector<job::Placement>& placements,
                    const job::SchedulingSpec& spec, const std::string& node) {
  if (item.phase != PartPhase::kStarted && item.phase != PartPhase::kEnded) return false;
  std::set<std::string> nodes;
  int64_t ranks = 0;
  for (const job::Placement& placement : placements) {
    if (!text::is_id(placement.node) || !nodes.insert(placement.node).second) return false;
    if (placement.first_rank != ranks || placement.num_ranks < 1) return false;
    ranks += placement.num_ranks;
    if (ranks > spec.ranks) return false;
  }
  return ranks == spec.ranks && nodes.contains(node);
}

// True if another attempt holds some of the devices, by the node's report.
bool others_have(const Registration& hello, const AttemptKey& key, const std::vector<int>& devices) {
  return std::any_of(hello.inventory.begin(), hello.inventory.end(), [&](const AttemptInventory& item) {
    if (item.devices == 0 || item.attempt == key) return false;
    return std::any_of(item.device_indices.begin(), item.device_indices.end(),
                       [&](int device) { return std::find(devices.begin(), devices.end(), device) != devices.end(); });
  });
}

void end_superseded(Step& step, LiveJob& job, const AttemptInventory& item, Change& change) {
  const int by = item.attempt.second;
  job.attempt->failing = true;
  stop_everywhere(step, job);
  erase_reports(job, change);
  job::AttemptRecord record = std::move(job.attempt->record);
  record.end_time_ns = step.now.wall_ns();
  record.end_cause = std::string(job::name(job::Cause::kStaleAttempt));
  record.end_message = absl::StrCat("the nodes run attempt ", by, ", which is newer than this controller's records");
  // The controller that made the newer attempt informed its nodes how this one ended.
  if (record.number + 1 == by && job::is_cause(item.previous_end_cause)) {
    record.end_cause = item.previous_end_cause;
    record.end_message = text::shortened(item.previous_end_message, job::kMaxMessageLength);
  }
  put_attempt(change, job, record);
  job.past.push_back(std::make_shared<const job::AttemptRecord>(std::move(record)));
  close_failed_logs(step, job, change);
  drop_attempt(step, job);
}

void adopt(Step& step, LiveJob& job, const AttemptInventory& item, std::vector<job::Placement> placements) {
  Change change;
  if (job.attempt) end_superseded(step, job, item, change);
  apply(job, JobEvent::kAttemptFailed);
  apply(job, JobEvent::kPlaced);
  apply(job, JobEvent::kPrepared);  // A job that is being cancelled ignores all three: it is stopped.
  LiveAttempt attempt;
  attempt.record.number = item.attempt.second;
  attempt.record.start_time_ns = item.start_time_ns != 0 ? item.start_time_ns : step.now.wall_ns();
  attempt.record.last_step = last_step(item);
  attempt.record.resumed_step = std::max<int64_t>(0, item.resumed_step);
  attempt.record.mesh = job.record.spec.mesh;
  attempt.record.placements = std::move(placements);
  for (const job::Placement& placement : attempt.record.placements) {
    attempt.record.ranks += placement.num_ranks;
    attempt.parts[placement.node] = {.placement = placement, .prepared = true};
    if (step.state.nodes.find(placement.node) != nullptr) continue;
    job::NodeRecord unheard;  // This node, too, has one lease to register.
    unheard.name = placement.node;
    step.state.nodes.restore(std::move(unheard), step.now.monotonic);
    update_scheduler_node(step, *step.state.nodes.find(placement.node));
  }
  attempt.start_sent = true;
  attempt.loaded = attempt.record.last_step > 0;  // The event for it may have gone to the newer store.
  job.record.attempts = attempt.record.number;
  if (job.record.placed_time_ns == 0) job.record.placed_time_ns = attempt.record.start_time_ns;
  note_time_limit(step.now, job);
  if (job.record.threads_per_rank == 0) job.record.threads_per_rank = item.threads_per_rank;
  job.progress.step = std::max(job.progress.step, attempt.record.last_step);
  step.state.queue.leave(job.record.uid);
  set_attempt(step, job, std::move(attempt));
  job.record.reserved.clear();
  job.held.clear();
  job.lost_seconds.clear();
  job.clear_pending();
  job.idle_since.reset();
  add_event(step, change, job,
            {.attempt = job.record.attempts,
             .reason = "AttemptAdopted",
             .message = absl::StrCat("the nodes run attempt ", job.record.attempts,
                                     ", which is newer than this controller's records: it keeps running"),
             .severity = "warning"});
  put_attempt(change, job, job.attempt->record);
  put_job(change, job);
  step.commit(std::move(change));
}

// Handles an attempt that this controller has not made: its store is an older copy. Numbers continue from those that
// the nodes have seen, and ranks that can be adopted are not stopped. A node can have such an attempt only from before
// its first session with this controller: newer attempts in later sessions are not believed. True: it was adopted.
bool catch_up(Step& step, Node& node, const AttemptInventory& item) {
  LiveJob* live = step.state.jobs.find(item.attempt.first);
  if (live == nullptr || item.attempt.second <= live->record.attempts) return false;
  LiveJob& job = *live;
  if (node.sessions_here > 1 || item.attempt.second - job.record.attempts > kMaxAttemptsAhead) {
    note_foreign(step, node,
                 absl::StrCat("attempt ", item.attempt.second, " of job ", job.record.name,
                              ", whose newest attempt is ", job.record.attempts),
                 job.record.name);
    return false;
  }
  std::vector<job::Placement> placements = placements_of(item, job.record.spec.ranks);
  if (can_be_adopted(item, placements, job.record.spec, node.record.name)) {
    adopt(step, job, item, std::move(placements));
    return true;
  }
  job.record.attempts = item.attempt.second;  // It is stopped as a stray. The next attempt gets a higher number.
  Change change;
  add_event(step, change, job,
            {.attempt = job.record.attempts,
             .reason = "AttemptNumberRaised",
             .message = absl::StrCat("a node reports attempt ", job.record.attempts,
                                     ", which this controller's records lack: numbers continue after it"),
             .severity = "warning"});
  put_job(change, job);
  step.commit(std::move(change));
  return false;
}

void end_part_that_is_gone(Step& step, LiveJob& job, const std::string& node) {
  release_part(step, job, node);
  Change change;
  add_refusal(job, {node, "SHIM_LOST", "the node came back without the attempt"}, change);
  conclude(step, job, std::move(change), absl::ZeroDuration());
}

// For an attempt that was adopted by one node's report. Other nodes that are registered and do not list it have lost
// it, or have forgotten it on behalf of a newer store than this one.
void end_parts_that_are_gone(Step& step, const std::string& uid, const std::string& by) {
  for (const std::string& node : step.state.jobs.at(uid).attempt->nodes()) {
    LiveJob* live = step.state.jobs.find(uid);
    if (live == nullptr || !live->attempt) return;
    const NodePart* const part = part_of(live, node);
    const Node* const known = step.state.nodes.find(node);
    if (node == by || part == nullptr || part->ended || known == nullptr || known->sessions_here == 0) continue;
    if (!step.state.strays.contains(node, live->key())) end_part_that_is_gone(step, *live, node);
  }
}

std::map<AttemptKey, PartPhase> phases_of(const Registration& hello) {
  std::map<AttemptKey, PartPhase> phases;
  for (const AttemptInventory& item : hello.inventory) {
    phases[item.attempt] = item.phase;
  }
  return phases;
}

// Returns the uids of the jobs whose newer attempt was adopted.
std::vector<std::string> adopt_newer(Step& step, Node& node, const Registration& hello) {
  std::vector<std::string> adopted;
  for (const AttemptInventory* item : newest_of_each_job(hello)) {
    if (catch_up(step, node, *item)) adopted.push_back(item->attempt.first);
  }
  return adopted;
}

// True if the item is about a part that should be there. A part that was given up is a stray until it has ended. Then
// its report says how.
bool is_of_part(Step& step, const std::string& node, const AttemptInventory& item) {
  LiveJob* job = job_of(step.state.jobs, item.attempt);
  if (job == nullptr || !job->attempt->parts.contains(node)) return false;
  const bool is_given_up = part_of(job, node) == nullptr;
  if (!is_given_up) note_devices(step.state.queue, *job, node, item);
  return !is_given_up || item.phase == PartPhase::kEnded;
}

// The state of a stray outlives the session in which it was reported.
void compare_strays(Step& step, Node& node, const Registration& hello) {
  const std::string& name = node.record.name;
  const Strays::OfNode before = step.state.strays.take(name);
  for (const auto& [key, stray] : before) step.state.queue.release(stray_owner(key), name);
  for (const AttemptInventory& item : hello.inventory) {
    const AttemptKey& key = item.attempt;
    if (is_of_part(step, name, item) || !may_list(step, node, key)) continue;
    if (is_elsewhere(step.state.jobs, name, key)) note_foreign(step, node, what_of(key));
    Stray& stray = stray_of(step, node, key) = described(item);
    if (const auto known = before.find(key); known != before.end()) {
      stray.unknown = known->second.unknown;
      stray.dismissed = known->second.dismissed;
      stray.grace = known->second.grace;
    }
    take_stray(step, node, key, item.phase, item.devices > 0);
    stop_dismissed(step, name, key);
  }
}

// Ranks that the node does not list are gone. Those that it lists have just been ordered to stop.
void compare_left_behind(Step& step, const std::string& node, const std::map<AttemptKey, PartPhase>& there) {
  for (const auto& [key, left] : LeftRanks::OfNode(step.state.left.on(node))) {
    const auto named = there.find(key);
    if (named == there.end() || named->second == PartPhase::kEnded) note_end_there(step, node, key);
  }
  bound_left_behind(step, node);
}

enum class Remedy { kNothing, kEnd, kGiveUp, kStop, kRefuse, kPrepare, kStart };

// Returns what to do about a part, from its intended state and the node's report. `seen`: null if the node does not
// list it.
Remedy remedy_for(const LiveJob& job, const std::string& node, const PartPhase* seen, const Registration& hello) {
  const LiveAttempt& attempt = *job.attempt;
  const NodePart& part = attempt.parts.at(node);
  const bool is_ending = attempt.failing || job.record.state == job::JobState::kStopping;
  const bool was_refused = std::any_of(attempt.refusals.begin(), attempt.refusals.end(),
                                       [&](const job::Refusal& refusal) { return refusal.node == node; });
  // The node never heard of the part or has forgotten it, or an earlier controller process was sent all of its exits.
  if (seen == nullptr && (was_refused || (is_ending && !attempt.start_sent))) return Remedy::kEnd;
  if (seen != nullptr && *seen == PartPhase::kEnded && attempt.exits_on(node) == part.placement.num_ranks)
    return Remedy::kEnd;
  if (seen == nullptr && attempt.start_sent) return Remedy::kGiveUp;
  const bool is_to_leave = part.asked_to_leave && job.record.spec.saves;
  // It is stopped with all other parts, or after its nodes have answered the diagnosis.
  if (is_ending || is_to_leave) return attempt.stop_waits || attempt.diagnose_by ? Remedy::kNothing : Remedy::kStop;
  if (attempt.start_sent) return attempt.start_waits ? Remedy::kNothing : Remedy::kStart;
  // An older copy of the store placed it: what runs there was just adopted, or is a stray.
  if (seen == nullptr && others_have(hello, job.key(), part.devices)) return Remedy::kRefuse;
  return Remedy::kPrepare;
}

// May end the attempt, and the job with it.
void carry_out(Step& step, Remedy remedy, LiveJob& job, const std::string& node) {
  NodePart& part = job.attempt->parts.at(node);
  switch (remedy) {
    case Remedy::kNothing:
      return;
    case Remedy::kEnd:
      part.ended = true;
      return conclude(step, job, {}, absl::ZeroDuration());
    case Remedy::kGiveUp:
      return end_part_that_is_gone(step, job, node);
    case Remedy::kStop:
      set_stop_deadline(step.now, job);
      return send_stop(step, job, node);
    case Remedy::kRefuse: {
      part.ended = true;
      Change change;
      add_refusal(job, {node, "DEVICE_TAKEN", "another attempt runs on devices of this one"}, change);
      return conclude(step, job, std::move(change), absl::ZeroDuration());
    }
    case Remedy::kPrepare:
      // The node answers with the present state, also if it has prepared already.
      return send_prepare(step, job, {node});
    case Remedy::kStart:
      send_start(step, job, node);
      // The request may have been lost with the session. A second checkpoint does no harm.
      if (job.record.state == job::JobState::kCheckpointing) send_checkpoint(step, job, node);
      return;
  }
}

void compare_parts(Step& step, const Node& node, const Registration& hello,
                   const std::map<AttemptKey, PartPhase>& there) {
  const std::string& name = node.record.name;
  for (const std::string& uid : step.state.placed.on(name)) {
    LiveJob& job = step.state.jobs.at(uid);
    LiveAttempt& attempt = *job.attempt;
    if (attempt.diagnose_by) ask_again(step, job, node);
    if (attempt.parts.at(name).ended) continue;
    if (attempt.advanced_at) attempt.advanced_at = step.now.monotonic;  // Its ranks' progress was not visible before.
    const auto seen = there.find(job.key());
    const PartPhase* const phase = seen == there.end() ? nullptr : &seen->second;
    carry_out(step, remedy_for(job, name, phase, hello), job, name);
  }
}

}  // namespace

void compare_inventory(Step& step, Node& node, const Registration& hello) {
  const std::string& name = node.record.name;
  const std::map<AttemptKey, PartPhase> there = phases_of(hello);
  const std::vector<std::string> adopted = adopt_newer(step, node, hello);
  compare_strays(step, node, hello);
  compare_left_behind(step, name, there);
  compare_parts(step, node, hello, there);
  for (const std::string& uid : adopted) end_parts_that_are_gone(step, uid, name);
  for (const std::string& uid : step.state.placed.on(name)) {
    LiveJob& job = step.state.jobs.at(uid);
    // Every node has answered.
    if (job.attempt->diagnose_by && job.attempt->to_answer.empty()) end_diagnosis(step, job);
  }
}

LiveJob* job_of(Jobs& jobs, const AttemptKey& key) {
  LiveJob* job = jobs.find(key.first);
  if (job == nullptr || !job->attempt) return nullptr;
  const bool is_present = job->attempt->record.number == key.second;
  return is_present ? job : nullptr;
}

// A part that was given up is a stray like any other.
NodePart* part_of(LiveJob* job, const std::string& node) {
  if (job == nullptr) return nullptr;
  const auto part = job->attempt->parts.find(node);
  return part == job->attempt->parts.end() || part->second.lost ? nullptr : &part->second;
}

}  // namespace titan::core
