// Diagnosis of an attempt that stands still or in which a collective failed: before anything is killed or forgotten,
// its nodes are queried for what its ranks do. Nobody waits long for a node that does not answer.

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "common/rank_protocol/failed_ranks.h"
#include "common/rank_protocol/launch.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(6);  // Nodes answer within five seconds.
constexpr int kDiagnosesKept = 16;                           // Per job, for its newest attempts.
constexpr int kSigAbort = 6;  // Gloo aborts a process that was sent another size than it expected.

enum class Question { kNone, kDisagreement, kStandstill };  // Questions that an attempt's end leaves open.

// True if a collective took too long or ranks disagreed. This is the rank's own failure, or that of the first rank to
// fail, which the message names.
bool is_about_a_collective(const job::ErrorReport& error) {
  return absl::StartsWith(error.reason, "COLLECTIVE_") || absl::StrContains(error.message, ": COLLECTIVE_");
}

// True if NCCL's watchdog ended the process: only these words show it.
bool waited_in_vain(const std::pair<const int, job::RankExit>& exit) {
  return exit.second.exit_code == rank_protocol::kExitPeerLost && absl::StrContains(exit.second.message, "timeout");
}

bool was_aborted(const std::pair<const int, job::RankExit>& exit) {
  return exit.second.signal == kSigAbort && exit.second.stop_reason.empty();
}

void begin_question(LiveAttempt& attempt, std::set<std::string> nodes, bool stuck, absl::Duration by) {
  attempt.to_answer = std::move(nodes);
  attempt.diagnose_by = by;
  attempt.findings = {};
  attempt.findings.world = attempt.record.ranks;
  attempt.findings.stuck = stuck;
}

// Returns what the attempt's end leaves open.
Question question_of(const LiveAttempt& attempt) {
  if (!attempt.start_sent || attempt.diagnosed) return Question::kNone;
  const bool hangs = std::any_of(attempt.refusals.begin(), attempt.refusals.end(),
                                 [](const job::Refusal& refusal) { return refusal.reason == "HANG"; });
  const bool stuck = std::any_of(attempt.errors.begin(), attempt.errors.end(), is_about_a_collective);
  const bool in_vain = std::any_of(attempt.exits.begin(), attempt.exits.end(), waited_in_vain);
  if (hangs || stuck || in_vain) return Question::kStandstill;
  const bool aborted = std::any_of(attempt.exits.begin(), attempt.exits.end(), was_aborted);
  return aborted ? Question::kDisagreement : Question::kNone;
}

void send_diagnose(Step& step, const LiveJob& job, const std::string& node) {
  const LiveAttempt& attempt = *job.attempt;
  const absl::Duration left = *attempt.diagnose_by - step.now.monotonic;
  const int64_t milliseconds = std::max<int64_t>(1, absl::ToInt64Milliseconds(left) * 5 / 6);
  step.send(node, Diagnose{job.key(), absl::Milliseconds(milliseconds), job::max_calls(attempt.record.ranks)});
}

}  // namespace

bool begin_diagnosis(Step& step, LiveJob& job) {
  LiveAttempt& attempt = *job.attempt;
  const Question question = question_of(attempt);
  if (question == Question::kNone) return false;
  std::set<std::string> nodes;
  for (const auto& [name, part] : attempt.parts) {
    const Node* node = step.state.nodes.find(name);
    const bool answers = node != nullptr && node->diagnoses && node->session != 0 && !node->suspect;
    if (answers && !part.lost) nodes.insert(name);
  }
  if (nodes.empty()) return false;
  begin_question(attempt, std::move(nodes), question == Question::kStandstill, step.now.monotonic + kAnswerTimeout);
  for (const std::string& name : attempt.to_answer) send_diagnose(step, job, name);
  return true;
}

// The node's previous session may have lost the query.
void ask_again(Step& step, LiveJob& job, const Node& node) {
  if (job.attempt->to_answer.count(node.record.name) == 0) return;
  if (node.diagnoses) return send_diagnose(step, job, node.record.name);
  job.attempt->to_answer.erase(node.record.name);
}

void on_diagnosis(Step& step, Node& node, Diagnosis answer) {
  LiveJob* const job = job_of(step.state.jobs, answer.attempt);
  const NodePart* const part = part_of(job, node.record.name);
  if (part == nullptr || job->attempt->to_answer.count(node.record.name) == 0) return;
  LiveAttempt& attempt = *job->attempt;
  if (answer.found && part->holds(answer.found->flight.rank)) {
    const int rank = answer.found->flight.rank;
    answer.found->node = node.record.name;
    attempt.findings.ranks[rank] = *std::move(answer.found);
  }
  if (!answer.end) return;
  attempt.to_answer.erase(node.record.name);
  if (attempt.to_answer.empty()) end_diagnosis(step, *job);
}

void check_diagnoses(Step& step) {
  for (auto& [uid, job] : step.state.jobs.live()) {
    if (!job.attempt || !job.attempt->diagnose_by || job.attempt->compared) continue;
    LiveAttempt& attempt = *job.attempt;
    std::erase_if(attempt.to_answer, [&](const std::string& node) { return attempt.parts.at(node).lost; });
    if (attempt.to_answer.empty() || step.now.monotonic > *attempt.diagnose_by) end_diagnosis(step, job);
  }
}

// An earlier controller process had decided to end the attempt, and may have sent the query already. The nodes are
// queried once they are connected.
void restore_diagnosis(const Cycles& cycles, LiveJob& job) {
  LiveAttempt& attempt = *job.attempt;
  attempt.diagnosed = attempt.record.diagnosed;
  const Question question = question_of(attempt);
  if (!attempt.failing || question == Question::kNone) return;
  const std::vector<std::string> nodes = attempt.nodes();
  begin_question(attempt, {nodes.begin(), nodes.end()}, question == Question::kStandstill,
                 cycles.earliest() + kAnswerTimeout);
}

// For ten thousand ranks the comparison takes a good part of a second. Others are served meanwhile.
void end_diagnosis(Step& step, LiveJob& job) {
  LiveAttempt& attempt = *job.attempt;
  if (std::exchange(attempt.compared, true)) return;
  attempt.to_answer.clear();
  Comparison& wanted = step.effects.comparisons.emplace_back();
  wanted.attempt = job.key();
  wanted.title = absl::StrCat("attempt ", attempt.record.number, " of ", job.record.name, ", ",
                              counted(attempt.findings.ranks.size(), "rank"), " of ", attempt.record.ranks,
                              " examined, ", absl::FormatTime(absl::RFC3339_sec, step.now.wall, absl::UTCTimeZone()));
  wanted.findings = std::make_shared<const job::Findings>(std::exchange(attempt.findings, {}));
}

// Reports the verdict and continues with the attempt's end.
void take(Step& step, const Compared& input) {
  LiveJob* live = step.state.jobs.find(input.attempt.first);
  if (live == nullptr || !live->attempt || live->key() != input.attempt) return;
  LiveJob& job = *live;
  LiveAttempt& attempt = *job.attempt;
  if (!attempt.compared || attempt.diagnosed) return;
  attempt.diagnose_by.reset();
  attempt.diagnosed = true;
  job::DiagnosisRecord record = input.record;
  record.attempt = attempt.record.number;
  record.time_ns = step.now.wall_ns();
  Change change;
  if (input.stuck || !record.verdict.empty()) {
    const int number = attempt.record.number;
    attempt.record.diagnosed = true;
    attempt.record.verdict = record.verdict;
    attempt.record.named_ranks = record.ranks;
    if (record.ranks.size() > rank_protocol::kFailedLogs) attempt.record.named_ranks.resize(rank_protocol::kFailedLogs);
    put_attempt(change, job, attempt.record);
    change.mutations.push_back(store::put(diagnosis_key(job.record.uid, number), job::encode(record)));
    if (number > kDiagnosesKept) {
      change.mutations.push_back(store::erase(diagnosis_key(job.record.uid, number - kDiagnosesKept)));
    }
    add_event(step, change, job,
              {.attempt = number,
               .rank = record.ranks.size() == 1 ? record.ranks.front() : -1,
               .reason = "AttemptDiagnosed",
               .message = absl::StrCat(record.verdict.empty() ? "no rank is known to have diverged" : record.verdict,
                                       "; `titanctl diagnose` shows where each rank stood"),
               .severity = "warning"});
    put_job(change, job);
  }
  set_stop_deadline(step.now, job);
  stop_everywhere(step, job);
  conclude(step, job, std::move(change), absl::ZeroDuration());
}

}  // namespace titan::core
