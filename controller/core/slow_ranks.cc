// Slow ranks are reported, and nothing else: whether to take their node out of service is for people to decide.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr size_t kMaxReported = 32;  // Events per job and window. The views have all slow ranks.

std::string milliseconds(absl::Duration time) { return absl::StrFormat("%.1f ms", absl::ToDoubleMilliseconds(time)); }

std::string in_words(const job::Stragglers::Change& change, const std::string& node) {
  const job::Stragglers::Slow& now = change.figures;
  return absl::StrCat("rank ", change.rank, " on ", node, change.slow ? " is slow" : " keeps pace again",
                      ": its own time per step is ", milliseconds(now.own), ", its peers' is ", milliseconds(now.peers),
                      absl::StrFormat(" (score %.2f)", now.score));
}

std::string node_of(const LiveAttempt& attempt, int rank) {
  for (const auto& [node, part] : attempt.parts) {
    if (part.holds(rank)) return node;
  }
  return "";
}

}  // namespace

std::vector<SlowRank> slow_ranks_on(const LiveJob& job, const std::string& node) {
  const auto& slow = job.attempt->stragglers.slow();
  const NodePart& part = job.attempt->parts.at(node);
  std::vector<SlowRank> found;
  for (auto it = slow.lower_bound(part.placement.first_rank); it != slow.end() && part.holds(it->first); ++it) {
    found.push_back({job.record.name, it->first, node, it->second});
  }
  return found;
}

std::vector<SlowRank> slow_ranks(const LiveJob& job) {
  std::vector<SlowRank> all;
  if (!job.attempt || job.attempt->stragglers.slow().empty()) return all;
  for (const auto& [node, part] : job.attempt->parts) {
    for (SlowRank& slow : slow_ranks_on(job, node)) all.push_back(std::move(slow));
  }
  return all;
}

void compare_ranks(Step& step, LiveJob& job) {
  LiveAttempt& attempt = *job.attempt;
  if (attempt.failing || !attempt.start_sent) return;
  const auto pipeline = attempt.record.mesh.find("pp");
  const int stages = pipeline == attempt.record.mesh.end() ? 1 : pipeline->second;
  const auto changes = attempt.stragglers.judge(step.now.monotonic, attempt.record.ranks, stages);
  if (changes.empty()) return;
  for (const auto& one : changes) step.touch(node_of(attempt, one.rank));
  Change change;
  for (size_t i = 0; i < changes.size() && i < kMaxReported; ++i) {
    const bool slow = changes[i].slow;
    const std::string node = node_of(attempt, changes[i].rank);
    std::string message = in_words(changes[i], node);
    if (i + 1 == kMaxReported && changes.size() > kMaxReported) {
      absl::StrAppend(&message, "; the state of ", changes.size() - kMaxReported, " other ranks has changed, too");
    }
    add_event(step, change, job,
              {.node = node,
               .attempt = attempt.record.number,
               .rank = changes[i].rank,
               .reason = slow ? "RankSlow" : "RankPaceRecovered",
               .message = std::move(message),
               .severity = slow ? "warning" : "info"});
  }
  put_job(change, job);
  step.commit(std::move(change));
}

}  // namespace titan::core
