// How an attempt ends: what is stopped once a part of it failed, what its end is called, and what follows.

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::Cause;
using job::JobEvent;

bool all_left_well(const std::map<int, job::RankExit>& exits) {
  return std::all_of(exits.begin(), exits.end(), [](const auto& exit) { return left_well(exit.second); });
}

// True if its nodes' own reports show that it fails.
bool is_known_to_fail(const LiveAttempt& attempt) { return !attempt.refusals.empty() || !all_left_well(attempt.exits); }

bool has_failed(const LiveAttempt& attempt) {
  const auto is_lost = [](const auto& part) { return part.second.lost; };
  return is_known_to_fail(attempt) || std::any_of(attempt.parts.begin(), attempt.parts.end(), is_lost);
}

// Names the steps that a stop with saving has lost. Empty: none, or it was not to save.
std::string not_saved(const LiveJob& job, const job::AttemptRecord& record, const std::map<int, job::RankExit>& exits) {
  const bool was_to_save = job.stops() && job.record.intent.save && job.record.spec.saves;
  const int64_t saved = std::max(job.progress.committed_step, record.resumed_step);
  const bool all_saved = static_cast<int>(exits.size()) == record.ranks && all_left_well(exits);
  if (!was_to_save || all_saved || record.last_step <= saved) return "";
  const std::string& failed = job.progress.failed_save;
  return absl::StrCat("; ", counted(record.last_step - saved, "step"), " after ",
                      saved > 0 ? absl::StrCat("the checkpoint of step ", saved) : "the start",
                      record.last_step - saved == 1 ? " is" : " are", " lost",
                      failed.empty() ? "" : absl::StrCat(": the save failed (", failed, ")"));
}

void begin_failure(Step& step, LiveJob& job, Change& change, absl::Duration since_failure) {
  LiveAttempt& attempt = *job.attempt;
  attempt.failing = true;
  attempt.stop_time_ns = step.now.wall_ns();
  attempt.failed_at = step.now.monotonic;
  job.lost_seconds = {{"detect", absl::ToDoubleSeconds(since_failure)}};
  // The stop is sent at once, not when it is durable: the attempt is over whatever the store says, and time matters to
  // the user. But a node that is silent here may be connected to a later leader. Only the write shows that there is
  // none.
  attempt.stop_waits = step.options.leader_epoch != 0 && !is_known_to_fail(attempt);
  const bool is_asked = !attempt.stop_waits && begin_diagnosis(step, job);
  if (attempt.stop_waits) {
    step.expect(change, SendCommand{job.key(), CommandKind::kStop, attempt.nodes()});
  } else if (!is_asked) {
    set_stop_deadline(step.now, job);
    stop_everywhere(step, job);
  }
  apply(job, JobEvent::kAttemptFailed);
  put_job(change, job);
}

void retry_or_fail(Step& step, LiveJob& job, const job::AttemptEnd& end, int64_t train_step, Change& change) {
  // Changes nothing if the failure was noticed before the attempt's end: the job is in that state already.
  apply(job, JobEvent::kAttemptFailed);
  const job::Verdict verdict =
      job::decide(job.record.spec.restart, job.record.history, end, train_step, step.options.jitter());
  if (!verdict.restart) {
    job.record.failure_reason = verdict.failure_reason;
    job.record.failure_message = verdict.failure_message;
    return end_or_leave(step, job, JobEvent::kGaveUp, change);
  }
  job.restart_at = step.now.monotonic + absl::Seconds(verdict.delay_seconds);
  job.record.restart_time_ns = step.now.wall_ns() + static_cast<int64_t>(verdict.delay_seconds * 1e9);
  hold_back(step.state.queue, job);
  journal::Line& line = change.then.lines.emplace_back(journal::Line{journal::Level::kWarning, "RestartDecided", {}});
  line.add("job", job.record.name)
      .add("uid", job.record.uid)
      .add("delay_s", absl::StrCat(verdict.delay_seconds))
      .add("without_progress", absl::StrCat(job.record.history.without_progress))
      .add("cause", std::string(job::name(end.cause)))
      .add("message", end.message);
  if (verdict.delay_seconds > 0) {
    const int restarts = job.record.history.without_progress + job.record.history.taken_devices;
    const bool is_refused = job::is_refusal_of_node(end) || job::lacks_devices(end);
    job.pending_reason = "BACKOFF";
    job.pending_message =
        absl::StrCat("next attempt in ", rounded(absl::Seconds(verdict.delay_seconds)), " after ",
                     counted(restarts, "restart"), " without progress",
                     is_refused ? absl::StrCat("; the last one was refused: ", end.reason, ": ", end.message) : "");
  }
  put_job(change, job);
}

bool is_as_asked(const job::AttemptEnd& end) {
  return end.cause == Cause::kCancelled || end.cause == Cause::kTimeLimit;
}

// Collects what is known about the end of the attempt.
job::EndFacts facts_of(const NodeTable& nodes, const LiveJob& job) {
  const LiveAttempt& attempt = *job.attempt;
  job::EndFacts facts;
  for (const auto& [rank, exit] : attempt.exits) facts.exits.push_back(exit);
  facts.errors = attempt.errors;
  facts.refusals = attempt.refusals;
  facts.out_of_time = is_out_of_time(job);
  facts.cancelled = job.stops() && !facts.out_of_time;
  facts.actor = job.record.intent.actor;
  facts.orphan_timeout_seconds = job.record.spec.restart.orphan_timeout_seconds;
  facts.stop_time_ns = attempt.stop_time_ns;
  facts.num_ranks = attempt.record.ranks;
  facts.hung = hung_ranks(job);
  facts.verdict = attempt.record.verdict;
  facts.newer_attempt = attempt.newer_attempt;
  facts.leader = attempt.leader();
  facts.elsewhere = can_go_elsewhere(nodes, job);
  for (const auto& [node, part] : attempt.parts) {
    if (is_draining(nodes, node) && part.asked_to_leave) facts.drained[node] = nodes.find(node)->record.drain.actor;
    if (part.lost && !part.overdue) facts.lost_nodes.push_back(node);
  }
  return facts;
}

// Reserves the devices of parts that are not lost for the next attempt.
void keep_devices(LiveJob& job) {
  for (const auto& [node, part] : job.attempt->parts) {
    if (part.lost) continue;
    job.record.reserved[node] = part.placement.num_ranks;
    job.held[node] = part.devices;
  }
}

// Moves the record out of the attempt and writes the end into it.
job::AttemptRecord ended_record(const Step& step, LiveJob& job, const job::AttemptEnd& end) {
  LiveAttempt& attempt = *job.attempt;
  job::AttemptRecord record = std::move(attempt.record);
  record.end_time_ns = step.now.wall_ns();
  record.end_cause = std::string(job::name(end.cause));
  record.end_message = absl::StrCat(end.message, not_saved(job, record, attempt.exits));
  record.exits = job::most_relevant(attempt.exits);
  for (const auto& [node, part] : attempt.parts) {
    if (part.lost && !part.overdue && step.state.left.may_train(node, {job.record.uid, record.number}))
      record.left_on.push_back(node);
  }
  return record;
}

void measure_end(Step& step, LiveJob& job, const job::AttemptEnd& end) {
  const std::optional<absl::Duration> failed_at = job.attempt->failed_at;
  if (failed_at) job.lost_seconds["stop"] = absl::ToDoubleSeconds(step.now.monotonic - *failed_at);
  if (end.cause != Cause::kFinished && !is_as_asked(end)) {
    for (const auto& [phase, seconds] : job.lost_seconds) step.measure(MetricSample::kLost, seconds, phase);
  }
  step.measure(MetricSample::kAttemptEnded, 1, std::string(job::name(end.cause)));
}

void forget_everywhere(const NodeTable& nodes, const LiveAttempt& attempt, const AttemptKey& key, Change& change) {
  for (const auto& [node, part] : attempt.parts) {
    if (part.lost) continue;
    if (std::optional<Send> order = forget(nodes, key, node)) change.then.sends.push_back(*std::move(order));
  }
}

// `lost`: the lost nodes, if they are why the attempt ended. `train_step`: how far the attempt came.
void decide_after(Step& step, LiveJob& job, const job::AttemptEnd& end, const std::vector<std::string>& lost,
                  int64_t train_step, Change& change) {
  if (end.cause == Cause::kFinished) {
    // kPlaced and kPrepared have an effect on an attempt that was taken for failed although all its ranks had finished,
    // and kPrepared also on one that ended before its start was reported.
    apply(job, JobEvent::kPlaced);
    apply(job, JobEvent::kPrepared);
    apply(job, JobEvent::kFinished);
    end_job(step, job, change);
  } else if (is_as_asked(end)) {
    const JobEvent event = end.cause == Cause::kCancelled ? JobEvent::kStopped : JobEvent::kGaveUp;
    if (event == JobEvent::kGaveUp) explain_time_limit(job);
    end_or_leave(step, job, event, change);
  } else {
    blame_nodes(step, job, end, lost);
    if (!end.at_odds.empty()) doubt_folder_id(step.state.folders, job);
    retry_or_fail(step, job, end, train_step, change);
  }
}

void finish_attempt(Step& step, LiveJob& job, Change& change) {
  end_explanation(job);
  const LiveAttempt& attempt = *job.attempt;
  const job::EndFacts facts = facts_of(step.state.nodes, job);
  const job::AttemptEnd end = job::classify(facts);
  job.record.attempts = std::max(job.record.attempts, attempt.newer_attempt);
  keep_devices(job);
  erase_reports(job, change);
  const job::AttemptRecord record = ended_record(step, job, end);
  measure_end(step, job, end);
  forget_everywhere(step.state.nodes, attempt, {job.record.uid, record.number}, change);
  // An attempt that never loaded has come as far as the job had before.
  const int64_t train_step = std::max(record.last_step, attempt.loaded ? 0 : job.record.history.best_step);
  if (record.last_step > 0) job.progress.step = record.last_step;
  put_progress(change, job);
  job.past.push_back(std::make_shared<const job::AttemptRecord>(record));
  close_failed_logs(step, job, change);
  drop_attempt(step, job);
  job.idle_since = step.now.monotonic;

  const bool is_well = end.cause == Cause::kFinished || (is_as_asked(end) && record.end_message == end.message);
  add_event(step, change, job,
            {.attempt = record.number,
             .reason = "AttemptEnded",
             .message = absl::StrCat(record.end_cause, ": ", record.end_message),
             .severity = is_well ? "info" : "warning"});
  put_attempt(change, job, record);
  const std::vector<std::string> lost = end.cause == Cause::kNodeLost ? facts.lost_nodes : std::vector<std::string>{};
  decide_after(step, job, end, lost, train_step, change);
}

}  // namespace

void conclude(Step& step, LiveJob& job, Change change, absl::Duration since_failure) {
  if (!job.attempt->failing && has_failed(*job.attempt)) begin_failure(step, job, change, since_failure);
  const bool goes_on = !job.attempt->all(&NodePart::ended) || job.attempt->diagnose_by;
  if (goes_on) return step.commit(std::move(change));
  finish_attempt(step, job, change);
  const bool over = job::is_final(job.record.state);
  step.commit(std::move(change));
  if (over) leave_queue(step.state, job);
  request_schedule(step, /*urgent=*/true);
}

// An attempt is stopped once the job's intent is durable.
void carry_out_stop(Step& step, LiveJob& job, JobEvent over, Change change) {
  job.clear_pending();
  if (job.attempt) {
    job::Intent& intent = job.record.intent;
    const int64_t by = step.now.wall_ns() + absl::ToInt64Nanoseconds(stop_time(job));
    intent.deadline_ns = intent.deadline_ns == 0 ? by : std::min(intent.deadline_ns, by);
    apply(job, JobEvent::kStopRequested);
    put_job(change, job);
    step.expect(change, SendCommand{job.key(), CommandKind::kStop, job.attempt->nodes()});
    return step.commit(std::move(change));
  }
  end_or_leave(step, job, over, change);
  const bool ended = job::is_final(job.record.state);
  step.commit(std::move(change));
  if (ended) leave_queue(step.state, job);
}

// An error must be durable with the acknowledgement of its event, and a refusal is reported only once: neither would be
// repeated after a crash.
void add_error(LiveJob& job, job::ErrorReport error, Change& change) {
  LiveAttempt& attempt = *job.attempt;
  // The dump folder's fence is above this attempt and belongs to the same job, so this store is an older copy.
  if (error.same_job) note_newer_attempt(attempt, error.holder_attempt);
  const std::string key = error_key(job.record.uid, attempt.record.number, attempt.errors.size());
  change.mutations.push_back(store::put(key, job::encode(error)));
  attempt.errors.push_back(std::move(error));
}

void add_refusal(LiveJob& job, job::Refusal refusal, Change& change) {
  LiveAttempt& attempt = *job.attempt;
  note_newer_attempt(attempt, refusal.highest_attempt);
  const std::string key = refusal_key(job.record.uid, attempt.record.number, attempt.refusals.size());
  change.mutations.push_back(store::put(key, job::encode(refusal)));
  attempt.refusals.push_back(std::move(refusal));
}

// Also drops the writes of the change itself: a transaction erases before it writes.
void erase_reports(const LiveJob& job, Change& change) {
  const LiveAttempt& attempt = *job.attempt;
  const std::string& uid = job.record.uid;
  const int number = attempt.record.number;
  const auto erase = [&change](const std::string& prefix) {
    std::erase_if(change.mutations, [&](const store::Mutation& put) { return absl::StartsWith(put.key, prefix); });
    change.erased_prefixes.push_back(prefix);
  };
  if (!attempt.exits.empty()) erase(exits_prefix(uid, number));
  if (!attempt.errors.empty()) erase(errors_prefix(uid, number));
  if (!attempt.refusals.empty()) erase(refusals_prefix(uid, number));
}

}  // namespace titan::core
