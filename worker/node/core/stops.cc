// Takes an attempt from the first request to end it to its last report.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "worker/node/core/step.h"

namespace titan::node {
namespace {

using Kind = Pending::Kind;
using Phase = AttemptRecord::Phase;

// Ends an attempt of which nothing runs or will run.
void give_up(Step& step, Attempt& attempt, const std::string& reason) {
  attempt.stopping = true;
  if (attempt.stage == Stage::kPreparing) return finish(step, attempt, Phase::kEnded);
  const AttemptKey key = attempt.record.key;
  erase_attempt(step, key);
  answer_unknown(step, key, v1::AttemptReport::ENDED,
                 {"NOT_PREPARED", absl::StrCat("stopped before it was prepared (", reason, ")")});
}

}  // namespace

void send_to_shim(Step& step, Attempt& attempt, ShimCommand command) {
  if (attempt.shim == ShimState::kLinked)
    return step.out(SendToShim{attempt.record.key, attempt.link, std::move(command)});
  attempt.pending.push_back(std::move(command));
}

void stop(Step& step, Attempt& attempt, bool save, int64_t grace_milliseconds, const std::string& reason,
          int64_t deadline_milliseconds) {
  // While the record of the end is being written, the report would still say that the attempt is alive, and the
  // controller would send Stop again without end. The end is reported once it is written.
  if (attempt.stage == Stage::kFinishing) return;
  if (attempt.ending()) return report(step, attempt);
  const std::string why = reason.empty() ? "no reason given" : reason;
  note(step, attempt.record.key, journal::Level::kInfo, "AttemptStopping",
       absl::StrCat("stop (", why, save ? ", saving first" : "", ")"));
  if (attempt.shim == ShimState::kNone) return give_up(step, attempt, why);
  if (!attempt.stopping) attempt.stop_asked_at = step.now.monotonic;
  attempt.stopping = true;
  send_to_shim(
      step, attempt,
      {.kind = ShimCommand::Kind::kStop, .save = save, .grace_milliseconds = grace_milliseconds, .reason = reason});
  const absl::Duration grace = step.now.monotonic + duration_of(grace_milliseconds);
  attempt.kill_shim_at = std::min(attempt.kill_shim_at, grace + kShimTimeout);
  if (attempt.overdue) return report(step, attempt);
  attempt.stop_overdue_at = std::min(
      attempt.stop_overdue_at,
      deadline_milliseconds > 0 ? step.now.monotonic + duration_of(deadline_milliseconds) : grace + kStopTimeout);
}

void refuse(Step& step, Attempt& attempt, const Refusal& why) {
  attempt.record.error_reason = why.reason;
  attempt.record.error_message = why.message;
  note(step, attempt.record.key, journal::Level::kWarning, "AttemptRefused",
       absl::StrCat("refused, ", why.reason, ": ", why.message));
  if (attempt.shim_may_live()) {
    if (!attempt.stopping) attempt.stop_asked_at = step.now.monotonic;
    attempt.stopping = true;
    attempt.kill_shim_at = step.now.monotonic + kShimTimeout;
    send_to_shim(step, attempt, {.kind = ShimCommand::Kind::kStop, .reason = why.reason});
  }
  finish(step, attempt, Phase::kRefused);
}

void link_lost(Step& step, Attempt& attempt) {
  attempt.link = 0;
  if (attempt.shim != ShimState::kLinked && attempt.shim != ShimState::kSpawning) return;
  attempt.shim = ShimState::kLost;
  if (attempt.end == Attempt::End::kNo) look_for_shim(step, attempt);
}

// Looks for the shim after its link broke: it may accept a new one, be starting, or be gone, or its state may be
// unknown.
void look_for_shim(Step& step, Attempt& attempt) {
  attempt.find_at = kNever;
  if (attempt.shim != ShimState::kLost || attempt.finding != 0) return;
  attempt.finding = step.begin({.kind = Kind::kFind, .key = attempt.record.key});
  step.out(FindShim{attempt.finding, attempt.record.key});
}

void shim_is_done(Step& step, Attempt& attempt, Attempt::End how) {
  if (attempt.end != Attempt::End::kNo) return;
  attempt.end = how;
  attempt.looks = 0;
  attempt.exits_by = step.now.monotonic + kExitsTimeout;
  check_ranks(step, attempt);
}

void check_ranks(Step& step, Attempt& attempt) {
  attempt.check_at = kNever;
  if (attempt.checking != 0) return;
  CheckRanks look;
  look.op = attempt.checking = step.begin({.kind = Kind::kCheck, .key = attempt.record.key});
  look.key = attempt.record.key;
  look.boot = attempt.boot;
  for (const RankState& rank : attempt.ranks) {
    look.ranks.push_back({rank.rank, rank.pid, rank.start_ticks, rank.running, rank.exit});
  }
  // The kernel kills the ranks of a dead shim. Processes that the ranks left are found by their environment.
  look.kill_left = attempt.end == Attempt::End::kShimLost;
  step.out(std::move(look));
}

void finish(Step& step, Attempt& attempt, Phase phase) {
  attempt.record.phase = phase;
  attempt.record.error_message = text::valid_utf8(attempt.record.error_message);
  attempt.stage = Stage::kFinishing;
  attempt.prepare_by = attempt.start_by = kNever;
  attempt.start.reset();
  attempt.stop_overdue_at = kNever;
  if (phase == Phase::kEnded) {
    for (const RankState& rank : attempt.ranks) {
      if (rank.exit) attempt.record.exits.push_back(*rank.exit);
    }
    attempt.shim = ShimState::kGone;
    attempt.link = 0;
    attempt.kill_shim_at = kNever;
    attempt.overdue_report_by = kNever;
    if (attempt.record.error_reason == "SHIM_LOST") ++step.state.shims_lost;
  } else if (attempt.shim_may_live()) {
    attempt.stop_overdue_at = step.now.monotonic + kStopTimeout;
  }
  attempt.finish_by = step.now.monotonic + kWriteTimeout;
  attempt.op = step.begin({.kind = Kind::kFinish, .key = attempt.record.key});
  step.out(WriteRecord{attempt.op, attempt.record});
}

// The exits are in the run folder, so a restarted daemon finds the end even if the record could not be written.
void on_finish_written(Step& step, Attempt& attempt, const std::string& error) {
  attempt.stage = Stage::kOver;
  attempt.op = 0;
  attempt.finish_by = kNever;
  if (!error.empty()) {
    note(step, attempt.record.key, journal::Level::kError, "WriteFailed", error);
    attempt.write_again_at = step.now.monotonic + absl::Seconds(1);
  }
  report_after_events(step, attempt);
}

void forget_if_over(Step& step, Attempt& attempt) {
  if (attempt.stage != Stage::kOver || attempt.shim_may_live()) return;
  attempt.stage = Stage::kForgetting;
  attempt.write_again_at = kNever;
  attempt.report_by = attempt.exits_report_by = kNever;
  attempt.record.phase = Phase::kForgotten;
  attempt.op = step.begin({.kind = Kind::kForget, .key = attempt.record.key});
  step.out(ForgetAttempt{attempt.op, attempt.record});
}

}  // namespace titan::node
