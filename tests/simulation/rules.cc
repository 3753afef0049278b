// Rules that hold whatever fails. Most of them compare the controller's statements with what the models know to be
// true.

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {
namespace {

// How long an attempt may stay in a state while the controller runs, its disk has space and none of its nodes has
// returned: the deadline of the nodes' commands plus that of a silent node.
constexpr int kSilenceSeconds = 65 + 20;
constexpr absl::Duration kMaxPrepare = absl::Seconds(75 + kSilenceSeconds);
constexpr absl::Duration kMaxStart = absl::Seconds(120 + kSilenceSeconds);
constexpr absl::Duration kMaxStop = absl::Seconds(15 + 30 + kSilenceSeconds);
constexpr absl::Duration kReasonWithin = absl::Seconds(10);
constexpr absl::Duration kLeavesWithin = absl::Seconds(35);  // A step, a save, and messages both ways.
constexpr absl::Duration kEndsWithin = absl::Seconds(2);     // After its time limit.
constexpr absl::Duration kLease = absl::Seconds(5);
constexpr absl::Duration kCountsEarlier = absl::Seconds(4);   // Two beats without an answer on a slow network.
constexpr absl::Duration kNoAnswer = absl::Seconds(7);        // The lease, and a beat with its answer.
constexpr absl::Duration kAfterEffects = absl::Seconds(120);  // Time in which a repaired fault may still have effects.

std::string field(const journal::Line& line, const std::string& key) {
  for (const auto& [name, value] : line.fields) {
    if (name == key) return value;
  }
  return "";
}

int number(const journal::Line& line, const std::string& key) {
  const std::string text = field(line, key);
  return text.empty() ? 0 : std::stoi(text);
}

}  // namespace

// --- Published state ---

void Scenario::see(const reconcile::JobView& view) {
  const job::JobRecord& record = *view.record;
  if (view.deleted) {
    if (requested_deletes_.count(record.uid) == 0) cluster_.violate(absl::StrCat("job ", record.uid, " is deleted"));
    acknowledged_.erase(record.uid);
    shown_.erase(record.uid);
    return;
  }
  Shown& shown = shown_[record.uid];
  created_.try_emplace(record.uid, cluster_.timeline.now());
  const std::string state(job::name(record.state));
  if (record.intent.stop) cluster_.ranks.cancelled.insert(record.uid);
  if (shown.over && shown.state != state) {
    cluster_.violate(absl::StrCat("job ", record.uid, " was ", shown.state, " and is ", state));
  }
  if (view.revision < shown.revision) cluster_.violate(absl::StrCat("the watch of ", record.uid, " goes back"));
  const bool is_out_of_time = record.state == job::JobState::kFailed && record.failure_reason == "TIME_LIMIT";
  if (is_out_of_time && !shown.over) check_limit(record);
  const bool is_excused =
      restored_ || lost_specs_.count(record.uid) > 0 ||
      (record.failure_reason == "DUMP_FOLDER_IN_USE" && lost_folders_.count(record.spec.dump_folder) > 0);
  if (record.state == job::JobState::kFailed && !is_out_of_time && !is_excused) {
    cluster_.violate(
        absl::StrCat("job ", record.uid, " failed: ", record.failure_reason, ": ", record.failure_message));
  }
  const int64_t committed = cluster_.storage[record.spec.dump_folder].committed;
  if (view.progress.committed_step > committed) {
    cluster_.violate(
        absl::StrCat("job ", record.uid, " shows checkpoint ", view.progress.committed_step, " of ", committed));
  }
  if (view.progress.committed_step < shown.committed) {
    cluster_.violate(absl::StrCat("job ", record.uid, " shows checkpoint ", view.progress.committed_step, " after ",
                                  shown.committed));
  }
  if (record.state == job::JobState::kSucceeded && committed < cluster_.ranks.plans[record.spec.dump_folder].steps) {
    cluster_.violate(absl::StrCat("job ", record.uid, " succeeded at step ", committed));
  }
  int attempt = 0;
  std::map<std::string, int> used;
  for (const auto& one : view.attempts) {
    if (one->end_time_ns != 0) continue;
    attempt = one->number;
    for (const job::Placement& placement : one->placements) used[placement.node] += placement.num_ranks;
  }
  if (!view.attempts.empty()) check_exits(record.uid, *view.attempts.back());
  if (shown.state != state) cluster_.trace(absl::StrCat("  ", record.uid, " is ", state));
  const bool is_placed = shown.attempt != attempt;
  if (shown.state != state || is_placed) shown.since = cluster_.timeline.now();
  shown.revision = view.revision;
  shown.dump_folder = record.spec.dump_folder;
  shown.state = state;
  shown.stops = record.intent.stop;
  shown.committed = view.progress.committed_step;
  shown.waits_for = absl::StrCat(view.pending_reason, ": ", view.pending_message);
  shown.has_reason = !view.pending_reason.empty();
  shown.over = job::is_final(record.state);
  shown.attempts = record.attempts;
  shown.attempt = attempt;
  if (attempt != 0) placed_.try_emplace(record.uid, cluster_.timeline.now());
  shown.grace = absl::Seconds(record.spec.restart.unreachable_grace_seconds);
  shown.limit =
      record.spec.time_limit_seconds > 0 ? absl::Seconds(record.spec.time_limit_seconds) : absl::InfiniteDuration();
  shown.used = std::move(used);
  shown.reserved = record.reserved;
  if (is_placed && !cluster_.is_starting) check_capacity(record.uid, shown);
}

// Ranks that are reported to have ended have really ended.
void Scenario::check_exits(const std::string& uid, const job::AttemptRecord& attempt) {
  size_t& seen = shown_.at(uid).exits[attempt.number];
  if (attempt.exits.size() == seen) return;
  seen = attempt.exits.size();
  for (const job::RankExit& exit : attempt.exits) {
    const Machine::Rank* rank = cluster_.machines.at(exit.node)->rank({uid, attempt.number}, exit.rank);
    if (rank != nullptr && rank->pid != 0 && !rank->running) continue;
    cluster_.violate(absl::StrCat("rank ", exit.rank, " of attempt ", attempt.number, " of ", uid,
                                  " is reported to have ended on ", exit.node, ", and ",
                                  rank != nullptr && rank->running ? "runs" : "has never run"));
  }
}

// The devices of an unfinished attempt belong to no other attempt. Exceptions are parts that the controller has given
// up, and attempts that a restored store does not know: until one of their nodes reports them, others may get the
// devices on the other nodes.
void Scenario::check_capacity(const std::string& uid, const Shown& job) {
  for (const auto& [node, ranks] : job.used) {
    int all = 0;
    for (const auto& [other, shown] : shown_) {
      const auto held = shown.used.find(node);
      if (held == shown.used.end() || shown.over || lost_parts_.count({other, shown.attempt, node}) > 0) continue;
      if (adopted_.count({other, shown.attempt}) > 0) continue;
      all += held->second;
    }
    if (all > size_.devices) {
      cluster_.violate(absl::StrCat("job ", uid, " is placed on ", node, ", where ", all, " ranks have devices"));
    }
  }
}

// --- The controller's decisions ---

void Scenario::check_line(const journal::Line& line) {
  const absl::Duration now = cluster_.timeline.now();
  const std::string node = field(line, "node"), uid = field(line, "uid");
  const int attempt = number(line, "attempt");
  if (line.event == "AttemptAdopted") adopted_.insert({uid, attempt});
  cluster_.watch();
  ++outcome_.decisions[line.event];
  const bool timed_out = line.event == "StopTimedOut" || line.event == "PrepareTimedOut";
  if (line.event == "NodeDeleted") {
    deleted_nodes_.insert(node);
  } else if (line.event == "NodeRegistered") {
    deleted_nodes_.erase(node);
    registered_[node] = now;
    for (const auto& [other, shown] : shown_) lost_parts_.insert({other, shown.attempt, node});
  } else if (line.event == "AttemptStarted") {
    started_[absl::StrCat(uid, "/", attempt)] = now;
  } else if (line.event == "NodeLost" || line.event == "RankUnkillable" || timed_out) {
    lost_parts_.insert({uid, attempt, node});
  }
  // The decision counts, not the state of the ranks when they learn of it.
  const bool is_lost = line.event == "NodeLost" && !cluster_.ranks.is_healthy({uid, attempt});
  if (line.event == "RankUnkillable" || line.event == "StopTimedOut" || is_lost) {
    cluster_.ranks.abandoned.insert({uid, attempt});
  }
  if (!resting_ && !uid.empty() && random_.chance(0.03)) inject_at_worst(line.event, uid, node);
  if (!resting_ && uid.empty() && line.event == "NodeLost" && random_.chance(0.2)) {
    cluster_.timeline.after(random_seconds(0, 5), [this] {
      if (cluster_.controller_answers()) delete_lost_node();
    });
  }
  const bool had_trouble = now < troubled_[node] + kAfterEffects;
  if (timed_out && !had_trouble && !restored_) {
    cluster_.violate(absl::StrCat("node ", node, ", which has no trouble, is abandoned: ", line.event));
  }
  if (line.event == "NodeCordoned" && absl::StartsWith(field(line, "message"), "by the controller") &&
      troubled_[node] == absl::ZeroDuration()) {
    cluster_.violate(absl::StrCat("node ", node, ", which had no trouble, is cordoned: ", field(line, "message")));
  }
  if (line.event == "AttemptHung") {
    const auto advance = cluster_.ranks.last_advance({uid, attempt});
    const auto start = started_.find(absl::StrCat(uid, "/", attempt));
    if ((advance && now - *advance < absl::Seconds(20)) ||
        (start != started_.end() && now - start->second < absl::Seconds(20))) {
      cluster_.violate(
          absl::StrCat("attempt ", attempt, " of ", uid, " is reported as hung: ", field(line, "message")));
    }
  }
}

// A connected node gets answers, even on a full disk: a worker gives a session up after a lease without an answer.
void Scenario::check_answers(const std::string& node) {
  const absl::Duration now = cluster_.timeline.now();
  if (!cluster_.controller_answers() || now - std::max(troubled_[node], runs_since_) < kNoAnswer) return;
  cluster_.violate(absl::StrCat("node ", node, " is connected and receives nothing"));
}

// A controller that has given an attempt up, or whose restored store has no record of it, may not know yet that the
// attempt has devices.
void Scenario::check_device_count(const std::string& node) {
  for (const auto& [key, attempt] : cluster_.machines.at(node)->core()->state().attempts) {
    if (!attempt.holds_devices() || (attempt.announced() && !restored_)) continue;
    const auto shown = shown_.find(key.job_uid);
    const bool is_present =
        shown != shown_.end() && shown->second.attempt == key.number && shown->second.used.count(node) > 0;
    if (!is_present || lost_parts_.count({key.job_uid, key.number, node}) > 0) return;
  }
  cluster_.violate(absl::StrCat("node ", node, " gets a request for devices that it does not have"));
}

// --- State that survives the controller ---

void Scenario::controller_started() {
  steady_since_ = runs_since_ = started_at_ = cluster_.timeline.now();
  paused_at_.clear();
  for (const auto& [uid, shown] : shown_) {
    const reconcile::JobViewPtr view = cluster_.controller->published().find(uid);
    if (view == nullptr) {
      if (requested_deletes_.count(uid) > 0 || lost_jobs_.count(uid) > 0) continue;
      cluster_.violate(absl::StrCat("job ", uid, " was shown and is gone after a restart"));
    } else if (view->revision < shown.revision) {
      cluster_.violate(absl::StrCat("job ", uid, " was shown at revision ", shown.revision, " and is at ",
                                    view->revision, " after a restart"));
    } else if (view->revision == shown.revision &&
               (view->record->attempts != shown.attempts || view->record->reserved != shown.reserved ||
                view->record->intent.stop != shown.stops || job::name(view->record->state) != shown.state)) {
      cluster_.violate(absl::StrCat("job ", uid, " has changed over a restart, at the same revision"));
    }
  }
  for (auto it = shown_.begin(); it != shown_.end();) {
    const bool is_gone = cluster_.controller->published().find(it->first) == nullptr;
    has_unknown_ranks_ = has_unknown_ranks_ || (is_gone && lost_jobs_.count(it->first) > 0);
    if (is_gone) acknowledged_.erase(it->first);
    it = is_gone ? shown_.erase(it) : std::next(it);
  }
  for (const std::string& uid : acknowledged_) {
    if (!restored_ && cluster_.controller->published().find(uid) == nullptr) {
      cluster_.violate(absl::StrCat("job ", uid, " was acknowledged and is gone after a restart"));
    }
  }
  // A durable cancel takes effect even if nobody got an answer.
  const std::vector<store::Record> cancels = *store::scan_all(cluster_.store, "cancel/");
  for (const store::Record& record : cancels) {
    cancels_.insert(record.key.substr(std::string("cancel/").size()));
  }
  for (const std::string& uid : deletes_) {
    if (cluster_.controller->published().find(uid) != nullptr) {
      cluster_.violate(absl::StrCat("job ", uid, " was deleted and exists after a restart"));
    }
  }
  cluster_.timeline.after(absl::Seconds(3), [this, start = ++starts_] {
    if (start == starts_ && cluster_.timeline.now() - steady_since_ > absl::Seconds(2)) check_cancels();
  });
}

// Cancels that were accepted before the controller started take effect.
void Scenario::check_cancels() {
  if (!cluster_.controller_answers()) return;
  for (const std::string& uid : cancels_) {
    const auto shown = shown_.find(uid);
    if (shown == shown_.end() || shown->second.stops || shown->second.over) continue;
    cluster_.violate(absl::StrCat("the cancel of job ", uid, " was acknowledged and is lost after a restart"));
  }
}

// --- States that must end ---

void Scenario::every_second() {
  if (!cluster_.controller_answers()) {
    runs_since_ = cluster_.timeline.now();
    paused_at_.push_back(runs_since_);
  }
  check_welcomes();
  check_cut_off();
  if (!cluster_.controller_answers() || cluster_.store.is_full()) {
    steady_since_ = cluster_.timeline.now();
  } else {
    check_waits();
    check_drains();
    check_limits();
    if (!size_.is_large()) check_nodes();  // For ten thousand nodes this would take longer than everything else.
  }
  check_placing();
  cluster_.timeline.after(absl::Seconds(1), [this] { every_second(); });
}

// Without a welcome, ranks would end as orphans: even on a full disk the controller welcomes a worker.
void Scenario::check_welcomes() {
  const absl::Duration now = cluster_.timeline.now();
  for (const auto& [name, machine] : cluster_.machines) {
    const bool waits =
        cluster_.links.at(name).stream != nullptr && machine->core() != nullptr && !machine->core()->state().welcomed;
    if (!waits) {
      unwelcomed_.erase(name);
    } else if (now - std::max({unwelcomed_.try_emplace(name, now).first->second, troubled_[name], runs_since_}) >=
               kNoAnswer) {
      cluster_.violate(absl::StrCat("node ", name, " is connected and not welcomed"));
    }
  }
}

void Scenario::check_waits() {
  const absl::Duration now = cluster_.timeline.now();
  for (auto& [uid, shown] : shown_) {
    if (shown.over) continue;
    const bool trains = shown.state == "RUNNING" || shown.state == "CHECKPOINTING";
    if (shown.has_reason || trains) shown.explained_at = now;
    absl::Duration since = std::max(shown.since, steady_since_);
    for (const auto& [node, ranks] : shown.used) since = std::max(since, registered_[node]);
    absl::Duration max_wait = absl::InfiniteDuration();
    if (shown.attempt == 0) {
      // The queue may be long.
    } else if (shown.state == "RESERVING") {
      max_wait = kMaxPrepare;
    } else if (shown.state == "STARTING") {
      max_wait = kMaxStart;
    } else if (shown.state == "STOPPING" || shown.state == "RECOVERING") {
      max_wait = kMaxStop;
    }
    const absl::Duration unexplained = now - std::max(since, shown.explained_at);
    if (now - since <= max_wait && unexplained <= kReasonWithin) continue;
    cluster_.violate(absl::StrCat("job ", uid, " is ", shown.state, " for ", absl::FormatDuration(now - since),
                                  ", and the reason is ", shown.waits_for));
  }
}

// Clients see the core's decisions about nodes.
void Scenario::check_nodes() {
  const auto describe = [](const reconcile::NodeView& view) {
    return absl::StrCat(view.node.record.name, " ", core::name(view.node.state), " ", view.node.can_take_ranks(), " ",
                        view.node.record.cordoned, " ", view.devices_used, " ", absl::StrJoin(view.jobs, ","), " ",
                        view.unknown.size(), " ", view.slow.size(), " ", absl::FormatTime(view.node.last_beat_time));
  };
  const std::vector<reconcile::NodeView> shown = cluster_.controller->nodes(),
                                         now = cluster_.controller->decided_nodes();
  for (const reconcile::NodeView& view : now) {
    const bool is_connected =
        view.node.session != 0;  // The node has returned, but the record of it may not be durable yet.
    if (is_connected || deleted_nodes_.count(view.node.record.name) == 0) continue;
    cluster_.violate(
        absl::StrCat("node ", view.node.record.name, " was deleted, and is shown as ", core::name(view.node.state)));
  }
  if (shown.size() != now.size()) return cluster_.violate("the shown nodes are not those that exist");
  for (size_t i = 0; i < now.size(); ++i) {
    if (describe(shown[i]) == describe(now[i])) continue;
    cluster_.violate(
        absl::StrCat("a node is shown in an old state: ", describe(shown[i]), " and not ", describe(now[i])));
  }
}

// An attempt that trains on a draining node has been ordered to stop, even if the first order was lost.
void Scenario::check_drains() {
  const absl::Duration now = cluster_.timeline.now();
  for (const auto& [node, since] : drains_) {
    if (now - std::max({since, steady_since_, troubled_[node], registered_[node]}) < kLeavesWithin) continue;
    Machine& machine = *cluster_.machines.at(node);
    for (const auto& [key, shim] : machine.shims()) {
      const auto advance = cluster_.ranks.last_advance(key);
      const auto shown = shown_.find(key.job_uid);
      if (!advance || now - *advance > absl::Seconds(5) || !shim.stop_reason.empty()) continue;
      if (shown == shown_.end() || shown->second.attempt != key.number || !cluster_.ranks.is_healthy(key)) continue;
      cluster_.violate(absl::StrCat("attempt ", key.number, " of ", key.job_uid, " trains on ", node,
                                    ", which is being drained for ", absl::FormatDuration(now - since)));
    }
  }
}

// If no node of a job was heard for as long as the job waits for its nodes, nobody knows whether it trains, and it may
// be started elsewhere. A worker may start to count slightly earlier. A paused controller hears no node and does not
// count that time; one of its seconds may be shorter than a second.
void Scenario::check_cut_off() {
  for (const auto& [uid, shown] : shown_) {
    if (shown.attempt == 0 || shown.over) continue;
    absl::Duration heard = started_at_ - kLease / 2;
    for (const auto& [node, ranks] : shown.used) heard = std::max(heard, cluster_.links.at(node).heard_at);
    const auto paused =
        std::count_if(paused_at_.begin(), paused_at_.end(), [&](absl::Duration at) { return at > heard; });
    const absl::Duration silent = cluster_.timeline.now() - heard - absl::Seconds(std::max<int64_t>(0, paused - 1));
    const bool is_cut_off = silent >= shown.grace + kLease - kCountsEarlier;
    if (is_cut_off) cluster_.ranks.abandoned.insert({uid, shown.attempt});
  }
}

// No job ends before its limit. Records have wall clock times, which may jump. The placement of a job is decided before
// it is shown, and long before on a full disk.
void Scenario::check_limit(const job::JobRecord& job) {
  if (restored_ || clock_jumped_ || lost_jobs_.count(job.uid) > 0) return;
  const absl::Duration passed = cluster_.timeline.now() - created_[job.uid];
  if (passed < absl::Seconds(job.spec.time_limit_seconds)) {
    cluster_.violate(absl::StrCat("job ", job.uid, " ended by its time limit after ", absl::FormatDuration(passed)));
  }
}

void Scenario::check_limits() {
  if (restored_ || clock_jumped_) return;
  const absl::Duration now = cluster_.timeline.now();
  for (const auto& [uid, shown] : shown_) {
    const auto placed = placed_.find(uid);
    if (shown.over || shown.stops || placed == placed_.end() || lost_jobs_.count(uid) > 0) continue;
    if (now - std::max(placed->second + shown.limit, steady_since_) < kEndsWithin) continue;
    cluster_.violate(
        absl::StrCat("job ", uid, " is ", shown.state, " beyond its limit of ", absl::FormatDuration(shown.limit)));
  }
}

void Scenario::check_all_over() {
  for (const auto& [uid, shown] : shown_) {
    if (!shown.over) cluster_.violate(absl::StrCat("job ", uid, " is still ", shown.state, " for ", shown.waits_for));
  }
  for (const std::string& uid : acknowledged_) {
    if (shown_.count(uid) == 0 && !restored_) cluster_.violate(absl::StrCat("job ", uid, " is lost"));
  }
}

}  // namespace titan::simulation
