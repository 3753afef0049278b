// A node's reports on its part of an attempt: prepared, started, refused or ended, and how its ranks ended.

#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/failed_ranks.h"
#include "common/rank_protocol/launch.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr size_t kExitEvents = 64;               // Per attempt.
constexpr char kStopTimeout[] = "STOP_TIMEOUT";  // The node cannot end ranks that it should stop.

// Returns the time since `then_ns`. Clocks of nodes differ: zero for a time in the future or more than a minute ago.
absl::Duration since(int64_t then_ns, int64_t now_ns) {
  if (then_ns <= 0 || then_ns > now_ns || now_ns - then_ns > 60'000'000'000) return absl::ZeroDuration();
  return absl::Nanoseconds(now_ns - then_ns);
}

// Returns a log line without its colours.
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

// For a part that ended before its ranks ran, although this controller did not stop it: without a refusal the other
// nodes would wait for ever. If an earlier controller process stopped it (`was_ordered`), its reason will be reported
// again elsewhere, and this node is not to blame.
job::Refusal ended_early(const std::string& node, bool was_ordered) {
  if (!was_ordered) return {node, "LAUNCH_FAILED", "the attempt ended there before its ranks ran"};
  return {"", "LAUNCH_FAILED",
          absl::StrCat("node ", node,
                       " was ordered to stop the attempt before its ranks ran, by a controller that could not ",
                       "record why")};
}

void put_exit(const LiveJob& job, const job::RankExit& exit, Change& change) {
  change.mutations.push_back(
      store::put(exit_key(job.record.uid, job.attempt->record.number, exit.rank), job::encode(exit)));
}

std::string how(const job::RankExit& exit) {
  if (left_well(exit))
    return exit.exit_code == rank_protocol::kExitFinished ? "finished" : "saved and exited on request";
  const std::string words =
      exit.message.empty() || exit.signal == SIGKILL ? "" : absl::StrCat(": ", plain(exit.message));
  if (exit.out_of_memory) return absl::StrCat("was killed for memory", words);
  if (exit.signal != 0) return absl::StrCat("was killed by signal ", exit.signal, words);
  return absl::StrCat("exited with code ", exit.exit_code, words);
}

// Each exit is a separate record: a job of ten thousand ranks fails with as many.
void take_exits(Step& step, LiveJob& job, Node& node, const AttemptReport& report, Change& change,
                absl::Duration& since_failure) {
  LiveAttempt& attempt = *job.attempt;
  const NodePart& part = attempt.parts.at(node.record.name);
  bool changed = false, has_event = false;
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
        put_exit(job, known->second, change);  // The log came late.
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
    has_event = true;
    add_event(step, change, job,
              {.node = node.record.name,
               .attempt = attempt.record.number,
               .rank = exit.rank,
               .reason = "RankExited",
               .message = absl::StrCat(how(exit),
                                       count == kExitEvents ? "; further exits of this attempt are not reported" : ""),
               .severity = left_well(exit) ? "info" : "warning"});
  }
  if (!changed) return;
  attempt.record.num_exits = static_cast<int>(attempt.exits.size());
  if (has_event) put_job(change, job);  // The other exits are shown with the attempt's end.
}

// Handles a report on an attempt that has no part on the node, or that is not the current one of its job.
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

// The leader's node reports where ranks meet and which folder they write to. False: the attempt must not start.
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
  if (part.lost && !report.holds_devices) end_abandoned_part(step, job, node, change);
  if (part.ended) return;
  const bool was_to_run = !attempt.failing && job.record.state != job::JobState::kStopping;
  if (!report.error_reason.empty()) {
    add_refusal(job, {node, report.error_reason, report.error_message, report.highest_attempt}, change);
  } else if (was_to_run && attempt.exits_on(node) < part.placement.num_ranks) {
    add_refusal(job, ended_early(node, report.stopped), change);
  }
  if (report.holds_devices) abandon_part(step, job, node);
  part.ended = true;
}

// Applies the report's phase to the part. False: the part is still preparing, or the phase is not known.
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

}  // namespace

bool left_well(const job::RankExit& exit) { return rank_protocol::ended_as_expected(exit.exit_code, exit.signal); }

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
  if (!take_phase(step, *job, name, report, change)) return step.commit(std::move(change));  // Keeps its exits.
  start_when_prepared(step, *job, change);
  conclude(step, *job, std::move(change), since_failure);
}

}  // namespace titan::core
