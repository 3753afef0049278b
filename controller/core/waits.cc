// Explains what an attempt waits for. Nothing else shows why a job stays RESERVING, STARTING, CHECKPOINTING, STOPPING
// or RECOVERING for long, since the queue explains only waiting jobs.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::JobState;

struct Wait {
  std::string reason;  // UPPER_SNAKE.
  std::string message;
};

constexpr size_t kNodesNamed = 3;
constexpr char kPreparing[] = "PREPARING", kStoreWaits[] = "STORE_WAITS", kStarting[] = "STARTING_RANKS",
               kNoStepYet[] = "NO_STEP_YET", kSaving[] = "SAVING", kEnding[] = "ENDING", kDiagnosing[] = "DIAGNOSING";

bool is_explanation(const std::string& reason) {
  return reason == kPreparing || reason == kStoreWaits || reason == kStarting || reason == kNoStepYet ||
         reason == kSaving || reason == kEnding || reason == kDiagnosing;
}

// "6 ranks in load, 2 ranks in rendezvous": the most frequent phase first.
std::string phases_of(const LiveAttempt& attempt) {
  std::map<std::string, int> counts;
  for (const auto& [node, part] : attempt.parts) {
    for (const auto& [number, rank] : part.ranks) ++counts[rank.phase];
  }
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [phase, count] : counts) sorted.emplace_back(-count, phase);
  std::sort(sorted.begin(), sorted.end());
  return absl::StrJoin(sorted, ", ", [](std::string* out, const auto& item) {
    absl::StrAppend(out, counted(-item.first, "rank"), " in ", item.second);
  });
}

// "2 of 8 nodes: n3, n5 (silent)".
std::string named_parts(const NodeTable& nodes, const LiveAttempt& attempt, const std::vector<std::string>& names) {
  std::vector<std::string> named;
  for (const std::string& name : names) {
    if (named.size() == kNodesNamed) break;
    const Node* node = nodes.find(name);
    named.push_back(node != nullptr && node->speaks() ? name : absl::StrCat(name, " (silent)"));
  }
  const size_t more = names.size() - named.size();
  return absl::StrCat(names.size(), " of ", counted(attempt.parts.size(), "node"), ": ", absl::StrJoin(named, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

// Returns what the attempt waits for. Empty: there is nothing to explain.
Wait wait_of(const NodeTable& nodes, const LiveJob& job) {
  const LiveAttempt& attempt = *job.attempt;
  const auto those = [&](const auto& is) {
    std::vector<std::string> names;
    for (const auto& [node, part] : attempt.parts) {
      if (!part.ended && is(part)) names.push_back(node);
    }
    return names;
  };
  const auto any = [](const NodePart&) { return true; };
  switch (job.record.state) {
    case JobState::kReserving:
      return {kPreparing,
              absl::StrCat("the attempt is not prepared on ",
                           named_parts(nodes, attempt, those([](const NodePart& part) { return !part.prepared; })))};
    case JobState::kStarting: {
      if (attempt.start_waits) {
        return {kStoreWaits,
                "the start is not durable yet, so its nodes were not notified: is the controller's disk full?"};
      }
      const std::vector<std::string> unstarted = those([](const NodePart& part) { return !part.started; });
      if (!unstarted.empty()) {
        return {kStarting, absl::StrCat("its ranks do not run yet on ", named_parts(nodes, attempt, unstarted))};
      }
      return {kNoStepYet, absl::StrCat("no rank has finished a step yet: ", phases_of(attempt))};
    }
    case JobState::kCheckpointing:
      return {kSaving, absl::StrCat("the requested checkpoint is not committed yet: ", phases_of(attempt))};
    case JobState::kStopping:
    case JobState::kRecovering:
      if (attempt.compared && attempt.diagnose_by)
        return {kDiagnosing, "the diagnosis data of its ranks is being compared"};
      if (attempt.diagnose_by) {
        return {kDiagnosing,
                absl::StrCat("collects diagnosis data before its ranks are stopped: ",
                             named_parts(nodes, attempt, {attempt.to_answer.begin(), attempt.to_answer.end()}))};
      }
      return {kEnding, absl::StrCat(attempt.failing ? "what is left of the failed attempt" : "the attempt",
                                    job.record.intent.save && !attempt.failing ? ", which may still save," : "",
                                    " has not ended on ", named_parts(nodes, attempt, those(any)))};
    default:
      return {};
  }
}

}  // namespace

void explain_waits(Step& step) {
  if (!step.state.explanation.is_due(step.now.monotonic)) return;
  Change change;
  for (auto& [uid, job] : step.state.jobs.live()) {
    const bool is_ours = is_explanation(job.pending_reason);
    if (!job.attempt || (!is_ours && !job.pending_reason.empty())) continue;
    const Wait wait = wait_of(step.state.nodes, job);
    if (is_ours || !wait.reason.empty()) set_pending(job, wait.reason, wait.message, change);
  }
  step.commit(std::move(change));
}

void end_explanation(LiveJob& job) {
  if (is_explanation(job.pending_reason)) job.clear_pending();
}

}  // namespace titan::core
