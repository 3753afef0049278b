// Answers requests for the diagnosis of an attempt: what its ranks do, or did last. The controller requests it when an
// attempt hangs or has failed, before the attempt is forgotten.

#include <algorithm>
#include <utility>

#include "worker/node/core/step.h"

namespace titan::node {
namespace {

void answer(Step& step, Attempt& attempt, const std::string& stacks_missing) {
  AnswerDiagnosis effect{attempt.diagnose_session, *std::exchange(attempt.diagnose, std::nullopt), {}, stacks_missing};
  attempt.diagnose_by = kNever;
  for (const RankState& rank : attempt.ranks) {
    effect.ranks.push_back({status_of(rank, step.now), rank.running && !rank.exit});
  }
  step.out(std::move(effect));
}

bool any_runs(const Attempt& attempt) {
  return std::any_of(attempt.ranks.begin(), attempt.ranks.end(),
                     [](const RankState& rank) { return rank.running && !rank.exit; });
}

}  // namespace

void diagnose(Step& step, const v1::Diagnose& request) {
  Attempt* const attempt = step.find({request.id().job_uid(), request.id().number()});
  if (attempt == nullptr) return step.out(AnswerDiagnosis{step.state.session, request, {}, ""});
  attempt->diagnose = request;
  attempt->diagnose_session = step.state.session;
  if (!request.stacks()) return answer(step, *attempt, "they were not requested");
  absl::Duration timeout = kStacksTimeout;
  if (request.deadline_milliseconds() > 0)
    timeout = std::min(timeout, absl::Milliseconds(request.deadline_milliseconds()));
  attempt->diagnose_by = step.now.monotonic + timeout;
  if (attempt->shim != ShimState::kLinked || attempt->ending() || !any_runs(*attempt)) return;
  send_to_shim(
      step, *attempt,
      {.kind = ShimCommand::Kind::kStacks, .timeout_milliseconds = absl::ToInt64Milliseconds(timeout * 3 / 4)});
}

void on_stacks(Step& step, Attempt& attempt, const std::string& missing) {
  if (attempt.diagnose) answer(step, attempt, missing);
}

// Answers early when all ranks have ended, because they leave nothing more, or when the shim is unreachable, and at the
// deadline at the latest.
void answer_diagnosis_if_over(Step& step, Attempt& attempt) {
  if (!attempt.diagnose) return;
  if (attempt.ending() || !any_runs(attempt)) return answer(step, attempt, "");
  if (attempt.shim != ShimState::kLinked) return answer(step, attempt, "its shim does not answer");
  if (step.now.monotonic >= attempt.diagnose_by) answer(step, attempt, "they could not be read in time");
}

}  // namespace titan::node
