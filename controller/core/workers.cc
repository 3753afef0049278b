// What workers say: sessions, beats, reports; and what their silence means.

#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "common/rank_protocol/failed_ranks.h"
#include "common/rank_protocol/launch.h"
#include "common/service/rpc/error.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

// Clocks of nodes differ: a time that cannot be right counts as "just now".
absl::Duration since(int64_t then_ns, int64_t now_ns) {
  if (then_ns <= 0 || then_ns > now_ns || now_ns - then_ns > 60'000'000'000) return absl::ZeroDuration();
  return absl::Nanoseconds(now_ns - then_ns);
}

// A log line without its colours.
std::string plain(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\x1b') {
      result.push_back(text[i]);
      continue;
    }
    while (i + 1 < text.size() && text[i] != 'm') ++i;
  }
  return result;
}

constexpr absl::Duration kUnknownStep = absl::Seconds(8);  // Before a node has shown kStepsToKnow.
constexpr char kNodeUnreachable[] = "NODE_UNREACHABLE";    // Why a job waits.
constexpr size_t kExitEvents = 64;                         // Of one attempt.
constexpr char kStopTimeout[] = "STOP_TIMEOUT";            // A node cannot end what it was told to.

bool speaks_of_its_own(const NodePart& part, const AttemptBeat& beat) {
  return std::all_of(beat.ranks.begin(), beat.ranks.end(),
                     [&](const RankStatus& rank) { return part.holds(rank.rank); });
}

bool left_well(const job::RankExit& exit) { return rank_protocol::left_as_asked(exit.exit_code, exit.signal); }

// How long a part's counters may stand still while its ranks do something: three steps as this attempt's slowest one,
// besides the beats that show it; longer where nothing shows between begin and end.
absl::Duration patience(const LiveAttempt& attempt, const NodePart& part, absl::Duration beat) {
  if (part.in_quiet_phase()) return std::max(absl::Seconds(30), 2 * attempt.longest_pause);
  const absl::Duration usual = 2 * beat + std::max(beat, 3 * attempt.longest_step);
  if (part.steps_measured < kStepsToKnow) return std::max({kUnknownStep, usual, 2 * attempt.longest_pause});
  return usual;
}

// Nobody here asked for it, and the other nodes would wait for ever. A controller before this one may have: what it had
// heard elsewhere comes again, and this node is not to blame for it.
job::Refusal ended_early(const std::string& node, bool was_told) {
  if (!was_told) return {node, "LAUNCH_FAILED", "the attempt ended there before its ranks ran"};
  return {"", "LAUNCH_FAILED",
          absl::StrCat("node ", node, " was told to stop it before its ranks ran, by a controller that could not ",
                       "write down why")};
}

void put_exit(const LiveJob& job, const job::RankExit& exit, Change& change) {
  change.mutations.push_back(
      store::put(exit_key(job.record.uid, job.attempt->record.number, exit.rank), job::encode(exit)));
}

std::string how(const job::RankExit& exit) {
  if (left_well(exit)) return exit.exit_code == rank_protocol::kExitFinished ? "finished" : "saved and left on request";
  const std::string words =
      exit.message.empty() || exit.signal == SIGKILL ? "" : absl::StrCat(": ", plain(exit.message));
  if (exit.out_of_memory) return absl::StrCat("was killed for memory", words);
  if (exit.signal != 0) return absl::StrCat("was killed by signal ", exit.signal, words);
  return absl::StrCat("left with exit code ", exit.exit_code, words);
}

// What is placed there would be cut off again and again. What runs there is left alone: ranks need no controller.
void note_flapping(Step& step, Node& node) {
  Change change;
  add_node_event(step, change, node, "NodeFlapping",
                 absl::StrCat("its worker began ", node.sessions.size(), " sessions within a minute"), "warning");
  if (!node.record.cordoned && may_cordon(step.state.nodes, node))
    cordon_by_controller(step, node, "its link goes up and down", change);
  put_node(step, change, node);
  step.commit(std::move(change));
}

void note_steady(Step& step, Node& node) {
  Change change;
  add_node_event(step, change, node, "NodeSteady",
                 absl::StrCat("no new session for a minute", node.record.cordoned ? "; it stays cordoned" : ""),
                 "info");
  put_node(step, change, node);
  step.commit(std::move(change));
}

// A node of waiting jobs speaks again.
void end_waiting_for(Step& step, const std::string& node) {
  for (const std::string& uid : step.state.placed.on(node)) {
    LiveJob& job = step.state.jobs.at(uid);
    if (job.pending_reason != kNodeUnreachable) continue;
    Change change;
    set_pending(job, "", "", change);
    step.commit(std::move(change));
  }
}

// Nobody could see what its ranks did: they may have advanced all the time.
void excuse_parts(State& state, const Now& now, const std::string& node) {
  for (const std::string& uid : state.placed.on(node))
    state.jobs.at(uid).attempt->parts.at(node).last_advance = now.monotonic;
}

// At once, not when its record is durable: on a full disk its ranks would end as orphans.
void welcome(Step& step, Node& node, const Registration& hello) {
  const std::string& name = hello.node;
  step.effects.now.sends.push_back(
      {node.session, Welcome{node.record.lease_epoch, step.options.lease, step.options.cluster}});
  tell_of(step, node);  // What it is; that it takes ranks, once it is known what it has.
  node.state = NodeState::kReady;
  end_waiting_for(step, name);
  excuse_parts(step.state, step.now, name);
  compare_inventory(step, node, hello);
  empty_node(step, name);
  tell_of(step, node);
  request_schedule(step, /*urgent=*/false);
}

// For how long a worker has heard nothing of this controller, as its beat says; zero for what is usual between a beat
// and its answer, and for what this process was stopped for itself.
absl::Duration deafness(const Step& step, absl::Duration unanswered) {
  if (unanswered <= 2 * step.state.nodes.beat_interval()) return absl::ZeroDuration();
  const bool was_asleep =
      step.state.pauses.is_paused(step.now.monotonic) || step.state.pauses.awake_for(step.now.monotonic) < unanswered;
  return was_asleep ? absl::ZeroDuration() : unanswered;
}

void on_beat(Step& step, Node& node, const Beat& beat) {
  note_condition(step, node, beat.unusable, beat.unix_nanoseconds);
  step.send(node.record.name, BeatAck{beat.sequence});
  for (const AttemptBeat& item : beat.attempts) {
    LiveJob* job = job_of(step.state.jobs, item.attempt);
    NodePart* part = part_of(job, node.record.name);
    if (part == nullptr) {
      if (is_elsewhere(step.state.jobs, node.record.name, item.attempt)) {
        note_foreign(step, node,
                     absl::StrCat("the beat of attempt ", item.attempt.second, " of job uid ", item.attempt.first,
                                  ", which is placed elsewhere"));
      }
      if (!may_list(step, node, item.attempt)) continue;
      Stray& stray = stray_of(step, node, item.attempt);
      stray.ranks.clear();
      for (const RankStatus& rank : item.ranks) {
        stray.ranks.push_back(rank.rank);
        stray.step = std::max(stray.step, rank.step);
      }
      take_stray(step, node, item.attempt, PartPhase::kStarted);
      continue;
    }
    if (!speaks_of_its_own(*part, item)) {
      note_foreign(step, node,
                   absl::StrCat("the beat of ranks of job ", job->record.name, " that are not placed there"),
                   job->record.name);
      continue;
    }
    note_beat(step, *job, *part, item);
    compare_ranks(step, *job);
    if (!slow_ranks_on(*job, node.record.name).empty()) step.touch(node.record.name);  // By how much.
    int64_t train_step = 0;
    for (const RankStatus& rank : item.ranks) train_step = std::max(train_step, rank.step);
    if (!job->attempt->loaded || train_step <= job->attempt->record.resumed_step) continue;
    Change change;
    note_first_step(step, *job, change);
    const bool is_first = !change.mutations.empty();
    take_finished_step(step, *job, job->attempt->record.number, train_step, change);
    if (is_first) put_progress(change, *job);  // From now on it is this attempt's.
    step.commit(std::move(change));
  }
}

// Each is a record of its own: a job of ten thousand ranks fails with as many.
void take_exits(Step& step, LiveJob& job, Node& node, const AttemptReport& report, Change& change,
                absl::Duration& since_failure) {
  LiveAttempt& attempt = *job.attempt;
  const NodePart& part = attempt.parts.at(node.record.name);
  bool changed = false, told = false;
  for (const auto& [exit, log] : report.exits) {
    if (!part.holds(exit.rank)) {
      note_foreign(
          step, node,
          absl::StrCat("the end of rank ", exit.rank, " of job ", job.record.name, ", which is not placed there"),
          job.record.name);
      continue;
    }
    if (const auto known = attempt.exits.find(exit.rank); known != attempt.exits.end()) {
      if (keep_failed_log(step, job, log, known->second, change))
        put_exit(job, known->second, change);  // It came late.
      continue;
    }
    if (!std::exchange(changed, true)) ++attempt.exit_reports;
    job::RankExit seen = exit;
    seen.node = node.record.name;
    seen.message = plain(exit.message);
    seen.report = attempt.exit_reports;
    keep_failed_log(step, job, log, seen, change);
    attempt.exits.emplace(exit.rank, seen);
    if (attempt.record.exits.size() < job::kExitsKept) attempt.record.exits.push_back(seen);
    put_exit(job, seen, change);
    if (!left_well(exit)) since_failure = std::max(since_failure, since(exit.time_ns, step.now.wall_ns()));
    const size_t count = attempt.exits.size();
    if (count > kExitEvents) continue;
    told = true;
    add_event(
        step, change, job,
        {.node = node.record.name,
         .attempt = attempt.record.number,
         .rank = exit.rank,
         .reason = "RankExited",
         .message = absl::StrCat(how(exit), count == kExitEvents ? "; no more exits of this attempt are told" : ""),
         .severity = left_well(exit) ? "info" : "warning"});
  }
  if (!changed) return;
  attempt.record.num_exits = static_cast<int>(attempt.exits.size());
  if (told) put_job(change, job);  // The others are shown with the attempt's end.
}

// Of an attempt of which nothing is placed on the node, or which is not the present one of its job.
void on_stray_report(Step& step, Node& node, const AttemptReport& report) {
  if (is_elsewhere(step.state.jobs, node.record.name, report.attempt)) {
    note_foreign(step, node,
                 absl::StrCat("a report of attempt ", report.attempt.second, " of job uid ", report.attempt.first,
                              ", which is placed elsewhere"));
  }
  if (!may_list(step, node, report.attempt)) return;
  take_stray(step, node, report.attempt, report.phase, report.holds_devices,
             /*overdue=*/report.error_reason == kStopTimeout);
}

// Where its ranks meet and which folder they write to are the leader's to say. False: the attempt must not start there.
bool take_leader_words(Step& step, LiveJob& job, const AttemptReport& report, Change& change) {
  if (report.store_port != 0) job.attempt->record.store_port = report.store_port;
  const bool is_prepared = report.phase == PartPhase::kPrepared || report.phase == PartPhase::kStarted;
  return !is_prepared || report.folder_id.empty() ||
         take_folder_id(step, job, job.attempt->leader(), report.folder_id, change);
}

void start_part(Step& step, LiveJob& job, NodePart& part) {
  LiveAttempt& attempt = *job.attempt;
  part.prepared = true;
  if (std::exchange(part.started, true)) return;
  part.last_advance = std::max(part.last_advance, step.now.monotonic);  // Its ranks begin.
  if (!attempt.all(&NodePart::started) || !attempt.placed_at) return;
  note_phase(step, job, "start", attempt.placed_at);
  attempt.started_at = step.now.monotonic;
}

void end_part(Step& step, LiveJob& job, const std::string& node, const AttemptReport& report, Change& change) {
  const LiveAttempt& attempt = *job.attempt;
  NodePart& part = job.attempt->parts.at(node);
  if (part.lost && !report.holds_devices) end_given_up(step, job, node, change);
  if (part.ended) return;
  const bool was_to_run = !attempt.failing && job.record.state != job::JobState::kStopping;
  if (!report.error_reason.empty()) {
    add_refusal(job, {node, report.error_reason, report.error_message, report.highest_attempt}, change);
  } else if (was_to_run && attempt.exits_on(node) < part.placement.num_ranks) {
    add_refusal(job, ended_early(node, report.stopped), change);
  }
  if (report.holds_devices) leave_devices(step, job, node);
  part.ended = true;
}

// How far the part is. False: the report does not say.
bool take_phase(Step& step, LiveJob& job, const std::string& node, const AttemptReport& report, Change& change) {
  NodePart& part = job.attempt->parts.at(node);
  switch (report.phase) {
    case PartPhase::kStarted:
      start_part(step, job, part);
      return true;
    case PartPhase::kPrepared:
      part.prepared = true;
      return true;
    case PartPhase::kRefused:
    case PartPhase::kEnded:
      end_part(step, job, node, report, change);
      return true;
    case PartPhase::kPreparing:
    case PartPhase::kUnknown:
      return false;
  }
  return false;
}

void on_report(Step& step, Node& node, const AttemptReport& report) {
  const std::string& name = node.record.name;
  LiveJob* job = job_of(step.state.jobs, report.attempt);
  if (job == nullptr || !job->attempt->parts.contains(name)) return on_stray_report(step, node, report);
  Change change;
  absl::Duration since_failure;
  take_exits(step, *job, node, report, change, since_failure);
  if (name == job->attempt->leader() && !take_leader_words(step, *job, report, change)) {
    return conclude(step, *job, std::move(change), since_failure);
  }
  if (report.error_reason == kStopTimeout && !job->attempt->parts.at(name).ended) {
    step.commit(std::move(change));
    return take_stop_timeout(step, *job, node, report.error_message);
  }
  if (!take_phase(step, *job, name, report, change)) return;
  start_when_prepared(step, *job, change);
  conclude(step, *job, std::move(change), since_failure);
}

void hear(Step& step, Node& node, NodeReport& report) {
  if (const auto* beat = std::get_if<Beat>(&report)) return on_beat(step, node, *beat);
  if (const auto* part = std::get_if<AttemptReport>(&report)) return on_report(step, node, *part);
  if (const auto* events = std::get_if<RankEvents>(&report)) return on_rank_events(step, node, *events);
  if (auto* answer = std::get_if<Diagnosis>(&report)) return on_diagnosis(step, node, std::move(*answer));
  if (std::holds_alternative<MisdirectedAnswer>(report)) {
    note_foreign(step, node, "an answer to a question that another node was asked");
  }
}

// A silent node's share of a job is left alone while the job's other nodes advance, and for a grace while nobody else
// could tell. Sets NODE_UNREACHABLE as the job's reason while it waits.
bool still_runs_without(Step& step, LiveJob& job, const std::string& silent_node) {
  const LiveAttempt& attempt = *job.attempt;
  const absl::Duration now = step.now.monotonic;
  const auto set_reason = [&](const std::string& reason, const std::string& message) {
    if (reason.empty() && job.pending_reason != kNodeUnreachable) return;
    Change change;
    set_pending(job, reason, message, change);
    step.commit(std::move(change));
  };
  if (attempt.failing || (job.stops() && !job.record.intent.save)) {
    set_reason("", "");
    return false;
  }
  bool anybody_speaks = false, advancing = false;
  absl::Duration last_word = -absl::InfiniteDuration();
  for (const auto& [name, part] : attempt.parts) {
    const Node* node = step.state.nodes.find(name);
    if (part.ended || node == nullptr) continue;
    last_word = std::max(last_word, node->last_beat);
    if (name == silent_node || !node->speaks()) continue;  // A suspect one: nobody can tell yet.
    anybody_speaks = true;
    advancing = advancing || now - part.last_advance <= patience(attempt, part, step.options.beat);
  }
  if (anybody_speaks) {
    set_reason("", "");
    return advancing;
  }
  const absl::Duration grace = absl::Seconds(job.record.spec.restart.unreachable_grace_seconds);
  if (now - last_word > step.options.lease + grace) {
    set_reason("", "");
    return false;
  }
  set_reason(kNodeUnreachable,
             job.stops() ? "no node of the job can be reached: its ranks may still run, and save and end once one is"
                         : absl::StrCat("no node of the job can be reached; the next attempt starts elsewhere ",
                                        absl::FormatDuration(grace), " after the lease"));
  return false;
}

void check_leases(Step& step) {
  const absl::Duration now = step.now.monotonic;
  // By job, until something of it is given up: the same for all its silent nodes, which may be thousands.
  std::map<std::string, bool> still_runs;
  for (auto& [name, node] : step.state.nodes.all()) {
    if (!step.state.nodes.lease_over(node, now)) continue;
    bool runs = false;
    for (const std::string& uid : step.state.placed.on(name)) {
      LiveJob& job = step.state.jobs.at(uid);
      if (job.attempt->parts.at(name).ended) continue;
      const auto known = still_runs.find(uid);
      const bool runs_without = known != still_runs.end() ? known->second : still_runs_without(step, job, name);
      still_runs[uid] = runs_without;
      if (runs_without) {
        runs = true;
      } else if (job.pending_reason != kNodeUnreachable) {
        lose_part(step, job, name);
        still_runs.erase(uid);
      }
    }
    const NodeState state = runs ? NodeState::kUnreachable : NodeState::kLost;
    if (node.state == state) continue;
    node.state = state;
    tell_of(step, node);
    Change change;
    add_node_event(step, change, node, runs ? "NodeUnreachable" : "NodeLost",
                   absl::StrCat(node.deaf ? "hears nothing for " : "silent for ",
                                absl::FormatDuration(absl::Trunc(now - node.last_beat, absl::Milliseconds(1))),
                                runs ? "; the job's other nodes show that it advances" : ""),
                   "warning");
    put_node(step, change, node);
    step.commit(std::move(change));
  }
}

}  // namespace

void take(Step& step, const OpenSession& input) {
  const Registration& hello = input.hello;
  const absl::Status ours = check_cluster(step.options, hello);
  const absl::StatusOr<Nodes::Opened> opened =
      ours.ok() ? step.state.nodes.open_session(hello, input.session, step.now.monotonic, step.now.wall) : ours;
  if (!opened.ok()) {
    // Nobody is kept out: the node speaks already, by its later session.
    if (rpc::reason(opened.status()) != kSessionReplaced) note_refusal(step, hello, opened.status());
    step.effects.refused = opened.status();
    return;
  }
  if (opened->replaced != 0) {
    step.effects.closes.emplace_back(opened->replaced, "a newer session of this node took over");
  }
  step.state.refusals.forget(hello.node);
  Change change;
  add_node_event(step, change, *opened->node, "NodeRegistered",
                 absl::StrCat(counted(hello.devices, hello.device + " device"), ", ", counted(hello.cpu_cores, "core"),
                              ", version ", hello.version),
                 "info", input.peer);
  put_node(step, change, *opened->node);
  step.commit(std::move(change));
  note_condition(step, *opened->node, hello.unusable, hello.unix_nanoseconds);
  if (step.state.nodes.mark_flapping(*opened->node, step.now.monotonic)) note_flapping(step, *opened->node);
  welcome(step, *opened->node, hello);
}

void take(Step& step, const CloseSession& input) {
  step.state.nodes.close_session(input.node, input.session);
  if (const Node* node = step.state.nodes.find(input.node); node != nullptr) tell_of(step, *node);
}

void take(Step& step, Heard& input) {
  Node* node = step.state.nodes.owner(input.node, input.session);
  if (node == nullptr) return;
  const bool could_take_ranks = node->can_take_ranks();
  const bool was_over = step.state.nodes.lease_over(*node, step.now.monotonic);
  const Beat* const beat = std::get_if<Beat>(&input.report);
  if (!node->deaf || beat != nullptr) {  // Any message shows that it lives; only a beat shows whether it hears.
    const absl::Duration unanswered = beat != nullptr ? beat->unanswered : absl::ZeroDuration();
    step.state.nodes.beat(*node, step.now.monotonic, step.now.wall, deafness(step, unanswered));
    step.effects.beats.emplace_back(input.node, step.now.wall);
  }
  const bool is_over = step.state.nodes.lease_over(*node, step.now.monotonic);
  if (was_over && !is_over) excuse_parts(step.state, step.now, input.node);
  const bool is_back = !is_over && (node->state == NodeState::kLost || node->state == NodeState::kUnreachable);
  if (is_back) {
    node->state = NodeState::kReady;  // The lease had run out, yet the stream held: a pause, not a loss.
    end_waiting_for(step, input.node);
    stop_lost(step, input.node);
  }
  if (beat == nullptr) step.touch(input.node);
  hear(step, *node, input.report);
  if (!could_take_ranks) tell_of(step, *node);
  if (is_back) step.touch(input.node);
  if (is_back) request_schedule(step, /*urgent=*/false);  // After it has said what still runs there. Thousands may.
}

void take(Step& step, const Tick&) {
  excuse_own_pause(step);
  for (const Node* node : step.state.nodes.mark_suspects(step.now.monotonic)) tell_of(step, *node);
  for (Node* node : step.state.nodes.end_flapping(step.now.monotonic)) note_steady(step, *node);
  check_leases(step);
  check_hangs(step);
  check_diagnoses(step);
  check_deadlines(step);
  check_time_limits(step);
  check_left_behind(step);
  estimate_ends(step.state, step.now);
  explain_waits(step);
  give_up_wishes(step);
  forget_refusals(step);
  if (schedule_is_due(step.state, step.now)) request_schedule(step, /*urgent=*/true);
  if (!step.state.cycles.has_begun()) say_who_is_awaited(step);
  delete_old_jobs(step);
  forget_deleted_jobs(step);
}

void lose_part(Step& step, LiveJob& job, const std::string& node) {
  const NodePart& part = job.attempt->parts.at(node);
  lose(step, job, node);
  leave_behind(step, job, node);
  Change change;
  add_event(step, change, job,
            {.node = node,
             .attempt = job.attempt->record.number,
             .reason = "NodeLost",
             .message = absl::StrCat("node ", node, " is lost with ", counted(part.placement.num_ranks, "rank")),
             .severity = "warning"});
  put_job(change, job);
  conclude(step, job, std::move(change), step.now.monotonic - step.state.nodes.find(node)->last_beat);
}

}  // namespace titan::core
