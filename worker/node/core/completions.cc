// Applies the reports of shims and of the disk, and deadlines, to an attempt.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "worker/node/core/step.h"

namespace titan::node {
namespace {

using Kind = Pending::Kind;
using Phase = AttemptRecord::Phase;

constexpr absl::Duration kLookAgain = absl::Milliseconds(10);
constexpr absl::Duration kLookAgainSlowly = absl::Seconds(1);
constexpr int kQuickLooks = 200;
constexpr absl::Duration kShimHeardLately = absl::Milliseconds(2500);  // A shim answers once a second.
constexpr absl::Duration kLookTimeout = absl::Seconds(2);

absl::Duration again(Attempt& attempt, const Step& step) {
  return step.now.monotonic + (attempt.looks++ < kQuickLooks ? kLookAgain : kLookAgainSlowly);
}

// Logs that a state is unreadable. This does not prove an end: the ranks may still train, and a second attempt must not
// run alongside them.
void say_unknown(Step& step, Attempt& attempt, const std::string& what, const std::string& why) {
  if (std::exchange(attempt.unknown, why) == why) return;
  note(step, attempt.record.key, journal::Level::kWarning, "StateUnknown",
       absl::StrCat("cannot determine whether its ", what, ", checking again until it is known: ", why));
}

void send_pending(Step& step, Attempt& attempt) {
  for (ShimCommand& command : std::exchange(attempt.pending, {})) send_to_shim(step, attempt, std::move(command));
}

// Handles the shim's report of its identity and its ranks.
void on_status(Step& step, Attempt& attempt, const ShimStatus& status) {
  attempt.looks = 0;
  attempt.unknown.clear();
  take_status(attempt, status);
  if (attempt.stage == Stage::kSpawning) {
    attempt.stage = Stage::kSaving;
    attempt.record.phase = Phase::kLive;
    attempt.op = step.begin({.kind = Kind::kLive, .key = attempt.record.key});
    return step.out(WriteRecord{attempt.op, attempt.record});
  }
  report(step, attempt);
  continue_starting(step, attempt);
}

void on_exit(Step& step, Attempt& attempt, const rank_protocol::RankExit& exit) {
  RankState* const rank = find_rank(attempt, exit.rank);
  if (rank == nullptr || rank->exit) return;
  rank->running = false;
  rank->exit = exit;
  rank->exit_unreported = true;
  attempt.exits_report_by = step.now.monotonic + kSpoolTimeout;
  rank->more = true;
  forward_events(step, attempt, *rank);  // The rank's events come before its exit.
}

void end_ranks(Step& step, Attempt& attempt, const RanksChecked& done) {
  take_exits(attempt, done.exits);
  std::string stop_reason;
  for (RankState& rank : attempt.ranks) {
    rank.running = false;
    rank.more = true;
    if (rank.exit) stop_reason = rank.exit->stop_reason;
    if (rank.exit || !attempt.started) continue;
    rank_protocol::RankExit& exit = rank.exit.emplace();
    exit.rank = rank.rank;
    exit.exit_code = -1;
    exit.signal = 9;
    const auto words = done.last_words.find(rank.rank);
    if (words != done.last_words.end()) exit.message = text::valid_utf8(words->second);
    exit.time_ns = step.now.wall_ns();
  }
  if (attempt.ending()) {  // Refused before; its devices are free now.
    attempt.shim = ShimState::kGone;
    attempt.kill_shim_at = attempt.stop_overdue_at = attempt.overdue_report_by = kNever;
    if (attempt.over()) report(step, attempt);
    return;
  }
  AttemptRecord& record = attempt.record;
  if (attempt.end == Attempt::End::kShimLost) {
    record.error_reason = "SHIM_LOST";
    record.error_message = done.same_boot
                               ? "titan-shim, the parent of the ranks, ended unexpectedly, and its ranks with it"
                               : "the node was restarted";
  } else if (stop_reason == "ORPHANED") {
    record.error_reason = "ORPHANED";
    record.error_message = absl::StrCat("no contact with a controller for ", record.orphan_timeout_seconds, " s");
  }
  finish(step, attempt, Phase::kEnded);
}

std::string state_name(char state) {
  switch (state) {
    case 'D':
      return "D (waiting in the kernel; no signal can end it)";
    case 'T':
    case 't':
      return absl::StrCat(std::string(1, state), " (stopped)");
    default:
      return std::string(1, state);
  }
}

void report_overdue(Step& step, Attempt& attempt, const std::string& what) {
  attempt.overdue_report_by = kNever;
  attempt.overdue_message = absl::StrCat(what, ", ", absl::ToInt64Seconds(step.now.monotonic - attempt.stop_asked_at),
                                         " s after the stop request; its devices stay reserved until it has ended");
  note(step, attempt.record.key, journal::Level::kError, "StopOverdue", attempt.overdue_message);
  report(step, attempt);
}

void kill_silent_shim(Step& step, Attempt& attempt) {
  attempt.kill_shim_at = attempt.shim_may_live() ? step.now.monotonic + kShimTimeout : kNever;
  if (!attempt.shim_may_live() || attempt.shim_pid == 0) return;
  if (attempt.shim == ShimState::kLinked && step.now.monotonic - attempt.shim_heard < kShimHeardLately) return;
  note(step, attempt.record.key, journal::Level::kWarning, "ShimKilled",
       "its shim did not stop its ranks in time: killing it");
  step.out(KillShim{attempt.record.key, attempt.shim_pid, attempt.shim_ticks});
}

}  // namespace

void take_exits(Attempt& attempt, const std::vector<rank_protocol::RankExit>& exits) {
  for (const rank_protocol::RankExit& exit : exits) {
    RankState* const rank = find_rank(attempt, exit.rank);
    if (rank != nullptr && !rank->exit) rank->exit = exit;
  }
}

void note_exits_damage(Step& step, Attempt& attempt, const std::string& damage) {
  if (damage.empty() || !attempt.exits_damage.empty()) return;
  attempt.exits_damage = damage;
  note(step, attempt.record.key, journal::Level::kWarning, "RunFolderDamaged", damage);
}

void take_status(Attempt& attempt, const ShimStatus& status) {
  attempt.shim_pid = status.pid;
  attempt.shim_ticks = status.start_ticks;
  if (!status.boot.empty()) attempt.boot = status.boot;
  attempt.store_port = status.store_port;
  for (const ReportedRank& said : status.ranks) {
    RankState* const rank = find_rank(attempt, said.rank);
    if (rank == nullptr) continue;
    rank->pid = said.pid;
    rank->start_ticks = said.start_ticks;
    rank->running = said.running;
    attempt.started = attempt.started || said.pid > 0;
    if (said.exit && !rank->exit) rank->exit = said.exit;
  }
}

void on_shim_spawned(Step& step, Attempt& attempt, const ShimSpawned& done) {
  if (attempt.shim != ShimState::kSpawning) return;
  if (!done.error.empty()) {
    attempt.shim = ShimState::kGone;
    attempt.link = 0;
    if (attempt.ending()) return;
    if (attempt.stopping) return finish(step, attempt, Phase::kEnded);
    return refuse(step, attempt, {"LAUNCH_FAILED", done.error});
  }
  attempt.shim = ShimState::kLinked;
  attempt.shim_pid = done.pid;
  attempt.shim_ticks = done.start_ticks;
  attempt.shim_heard = step.now.monotonic;
  send_pending(step, attempt);
}

void on_shim_found(Step& step, Attempt& attempt, const ShimLookup& done) {
  attempt.finding = 0;
  if (attempt.shim != ShimState::kLost || attempt.end != Attempt::End::kNo) return;
  switch (done.state) {
    case ShimLookup::State::kLinked:
      attempt.shim = ShimState::kLinked;
      attempt.link = done.op;
      attempt.shim_heard = step.now.monotonic;
      return send_pending(step, attempt);
    case ShimLookup::State::kSilent:
      attempt.find_at = again(attempt, step);
      if (attempt.looks == kQuickLooks)
        note(step, attempt.record.key, journal::Level::kWarning, "ShimSilent", "its shim lives but does not answer");
      return;
    case ShimLookup::State::kUnknown:
      attempt.find_at = again(attempt, step);
      return say_unknown(step, attempt, "shim lives", done.why);
    case ShimLookup::State::kGone:
      break;
  }
  if (done.status) take_status(attempt, *done.status);
  if (!attempt.started && attempt.stage == Stage::kSpawning && !attempt.stopping) {
    attempt.shim = ShimState::kGone;
    return refuse(step, attempt, {"LAUNCH_FAILED", absl::StrCat("titan-shim did not start: ", done.why)});
  }
  take_exits(attempt, done.exits);
  // On a full disk the shim may have failed to write its last status, but not the exits, whose space is reserved.
  const bool all_recorded = done.exits.size() == attempt.ranks.size();
  const bool ended = (done.status && done.status->ended) || all_recorded;
  shim_is_done(step, attempt, ended ? Attempt::End::kEnded : Attempt::End::kShimLost);
}

// Handles a check of the ranks' processes. The end is reported when all ranks are gone.
void on_ranks_checked(Step& step, Attempt& attempt, const RanksChecked& done) {
  attempt.checking = 0;
  note_exits_damage(step, attempt, done.exits_damage);
  if (attempt.overdue_report_by != kNever) {
    std::string what = done.unknown.empty() ? "its shim is still running" : done.unknown;
    for (const RanksChecked::Alive& alive : done.alive) {
      what = absl::StrCat(&alive == done.alive.data() ? "" : what + "; ", "rank ", alive.rank, " (pid ", alive.pid,
                          ") is still running in state ", state_name(alive.state));
    }
    report_overdue(step, attempt, what);
  }
  if (attempt.end == Attempt::End::kNo || !attempt.shim_may_live()) return;
  if (!done.unknown.empty()) say_unknown(step, attempt, "ranks live", done.unknown);
  if (!done.unknown.empty() || !done.alive.empty()) {
    attempt.check_at = again(attempt, step);
    return;
  }
  const bool some_unknown = attempt.started && std::any_of(attempt.ranks.begin(), attempt.ranks.end(),
                                                           [](const RankState& rank) { return !rank.exit; });
  if (!done.exits_unknown.empty() && some_unknown) {
    if (std::exchange(attempt.unknown, done.exits_unknown) != done.exits_unknown) {
      note(step, attempt.record.key, journal::Level::kWarning, "ExitsUnknown", done.exits_unknown);
    }
    if (step.now.monotonic < attempt.exits_by) {
      attempt.check_at = again(attempt, step);
      return;
    }
  }
  end_ranks(step, attempt, done);
}

void on_shim_event(Step& step, const ShimEvent& said) {
  Attempt* const attempt = step.find(said.key);
  if (attempt == nullptr || said.link == 0 || attempt->link != said.link) return;
  attempt->shim_heard = step.now.monotonic;
  switch (said.kind) {
    case ShimEvent::Kind::kLease:
      attempt->log_bytes_dropped = said.log_bytes_dropped;
      return;
    case ShimEvent::Kind::kStatus:
      return attempt->ending() ? take_status(*attempt, said.status) : on_status(step, *attempt, said.status);
    case ShimEvent::Kind::kStarted:
      take_status(*attempt, said.status);
      if (!attempt->ending()) report(step, *attempt);
      return;
    case ShimEvent::Kind::kStartFailed:
      if (!attempt->ending() && !attempt->stopping) refuse(step, *attempt, {"LAUNCH_FAILED", said.error});
      return;
    case ShimEvent::Kind::kStacks:
      return on_stacks(step, *attempt, said.error);
    case ShimEvent::Kind::kExit:
      return on_exit(step, *attempt, said.exit);
    case ShimEvent::Kind::kEnded:
      take_status(*attempt, said.status);
      return shim_is_done(step, *attempt, Attempt::End::kEnded);
  }
}

void on_shim_closed(Step& step, const ShimClosed& closed) {
  Attempt* const attempt = step.find(closed.key);
  if (attempt != nullptr && closed.link != 0 && attempt->link == closed.link) link_lost(step, *attempt);
}

void run_deadlines(Step& step, Attempt& attempt) {
  const absl::Duration now = step.now.monotonic;
  const auto due = [now](absl::Duration time) { return now >= time; };
  if (due(attempt.start_by)) {
    attempt.start_by = kNever;
    attempt.checking_token = 0;
    if (!attempt.ending() && !attempt.stopping) {
      refuse(step, attempt,
             {"DUMP_FOLDER_UNUSABLE",
              absl::StrCat("the storage of the dump folder ", attempt.record.dump_folder, " does not answer")});
    }
  }
  if (due(attempt.find_at)) look_for_shim(step, attempt);
  if (due(attempt.check_at)) check_ranks(step, attempt);
  if (due(attempt.kill_shim_at)) kill_silent_shim(step, attempt);
  if (due(attempt.stop_overdue_at)) {
    attempt.stop_overdue_at = kNever;
    attempt.overdue = true;
    attempt.overdue_report_by = now + kLookTimeout;
    if (attempt.checking == 0) check_ranks(step, attempt);
  }
  if (due(attempt.overdue_report_by))
    report_overdue(step, attempt, "it is unknown which of its ranks are still running");
  if (due(attempt.finish_by)) on_finish_written(step, attempt, "the state folder does not answer");
  if (due(attempt.write_again_at)) {
    attempt.write_again_at = kNever;
    attempt.writing_again = step.begin({.kind = Kind::kAgain, .key = attempt.record.key});
    step.out(WriteRecord{attempt.writing_again, attempt.record});
  }
}

}  // namespace titan::node
