// Hangs: ranks that are alive on connected nodes and make no progress.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

// Factors on the ranks' own timeouts, which come first because they name the culprit.
constexpr int kTimeoutFactor = 3;
constexpr int kQuietTimeoutFactor = 10;
// An attempt that was slow before may be slow again. The limit is ten times its longest pause outside of quiet phases,
// up to ten times its timeout, and never less than twice that pause.
constexpr int kSlowerThanEver = 10;
constexpr size_t kRanksNamed = 8;

// A lower bound of hang_limit() that needs no look at the ranks.
double least_limit_seconds(const LiveJob& job) {
  const job::RestartPolicy& policy = job.record.spec.restart;
  return kTimeoutFactor *
         (job.attempt->record.first_step_time_ns != 0 ? policy.train_timeout_seconds : policy.init_timeout_seconds);
}

absl::Duration hang_limit(const LiveJob& job) {
  const LiveAttempt& attempt = *job.attempt;
  const job::RestartPolicy& policy = job.record.spec.restart;
  double seconds = least_limit_seconds(job);
  if (attempt.in_quiet_phase()) seconds = std::max(seconds, kQuietTimeoutFactor * policy.init_timeout_seconds);
  const absl::Duration pause = attempt.longest_working_pause;
  const absl::Duration most = kSlowerThanEver * absl::Seconds(policy.train_timeout_seconds);
  return std::max({absl::Seconds(seconds), 2 * pause, std::min(kSlowerThanEver * pause, most)});
}

std::string who_hangs(const LiveAttempt& attempt) {
  std::vector<std::string> ranks;
  for (const auto& [node, part] : attempt.parts) {
    for (const auto& [rank, seen] : part.ranks) {
      ranks.push_back(absl::StrCat("rank ", rank, " on ", node, " in ", seen.phase.empty() ? "its start" : seen.phase));
    }
  }
  const size_t all = ranks.size();
  ranks.resize(std::min(all, kRanksNamed));
  return absl::StrCat(absl::StrJoin(ranks, ", "), all > kRanksNamed ? ", ..." : "");
}

bool all_speak(const NodeTable& nodes, const LiveAttempt& attempt) {
  return std::all_of(attempt.parts.begin(), attempt.parts.end(), [&](const auto& item) {
    const Node* node = nodes.find(item.first);
    return item.second.ended || (node != nullptr && node->speaks());
  });
}

}  // namespace

void note_advance(const Pauses& pauses, const Now& now, LiveAttempt& attempt, bool quiet) {
  const absl::Duration pause = attempt.advanced_at ? now.monotonic - *attempt.advanced_at : absl::ZeroDuration();
  // The first message after a pause of this process, before a tick has noticed the pause, would measure the pause.
  if (!pauses.is_paused(now.monotonic)) attempt.longest_pause = std::max(attempt.longest_pause, pause);
  if (!pauses.is_paused(now.monotonic) && !quiet)
    attempt.longest_working_pause = std::max(attempt.longest_working_pause, pause);
  attempt.advanced_at = now.monotonic;
}

void note_beat(Step& step, LiveJob& job, NodePart& part, const AttemptBeat& beat) {
  LiveAttempt& attempt = *job.attempt;
  const absl::Duration now = step.now.monotonic;
  int64_t counter = 0;
  bool quiet = attempt.record.first_step_time_ns == 0;
  for (const RankStatus& rank : beat.ranks) {
    const auto before = part.ranks.find(rank.rank);
    quiet = quiet || is_quiet(rank.phase) || (before != part.ranks.end() && is_quiet(before->second.phase));
    counter += rank.counter;
    const bool is_new = part.ranks.count(rank.rank) == 0;
    RankSeen& seen = part.ranks[rank.rank];
    if (is_new || rank.counter > seen.counter) seen.last_advance = now;
    seen.phase = rank.phase;
    seen.step = rank.step;
    seen.counter = rank.counter;
    attempt.stragglers.see(rank.rank, rank.own_steps, rank.own_nanoseconds, now);
  }
  if (counter > part.counter) {
    note_advance(step.state.pauses, step.now, attempt, quiet);
    // Measured on one node: others show the same step a little later.
    const absl::Duration took = now - part.last_advance;
    // Beats that waited while the controller was paused arrive all at once and do not show a step either.
    if (!quiet && took >= step.options.beat / 2 && took != absl::InfiniteDuration()) {
      attempt.longest_step = std::max(attempt.longest_step, took);
      job.progress.longest_step_seconds = absl::ToDoubleSeconds(attempt.longest_step);
      ++part.steps_measured;
    }
    part.last_advance = now;
  }
  if (!attempt.advanced_at) attempt.advanced_at = now;
  part.counter = counter;
}

// No node was sent Start before the start was durable, so the time until now does not count. The watch begins with the
// first beats of the ranks.
void begin_watch(const Now& now, LiveAttempt& attempt) {
  attempt.start_waits = false;
  for (auto& [node, part] : attempt.parts) part.last_advance = std::max(part.last_advance, now.monotonic);
  attempt.advanced_at.reset();
}

// Peers of a rank that hangs give up on it while it lives: the rank that stood still for long and is furthest behind is
// the one they waited for. Ranks that wait stand still, too, but are ahead of it.
std::vector<job::HungRank> hung_ranks(const LiveJob& job) {
  const LiveAttempt& attempt = *job.attempt;
  const job::RestartPolicy& policy = job.record.spec.restart;
  const double timeout =
      attempt.record.first_step_time_ns != 0 ? policy.train_timeout_seconds : policy.init_timeout_seconds;
  std::vector<job::HungRank> hung;
  std::pair<int64_t, int64_t> furthest_behind;
  for (const auto& [number, exit] : attempt.exits) {
    const auto part = attempt.parts.find(exit.node);
    if (exit.stop_reason.empty() || exit.signal == 0 || part == attempt.parts.end()) continue;
    const auto rank = part->second.ranks.find(exit.rank);
    if (rank == part->second.ranks.end() || !attempt.failed_at) continue;
    const RankSeen& seen = rank->second;
    const double silent = absl::ToDoubleSeconds(*attempt.failed_at - seen.last_advance);
    if (silent < timeout / 2) continue;
    const std::pair place{seen.step, seen.counter};
    if (!hung.empty() && place > furthest_behind) continue;
    if (!hung.empty() && place < furthest_behind) hung.clear();
    furthest_behind = place;
    if (hung.size() < kRanksNamed) hung.push_back({exit.rank, exit.node, seen.phase, silent});
  }
  return hung;
}

// Ranks that wait for a dead or stopped rank end by their own timeout, and the attempt with them. This check is for
// what no timeout of a rank covers: all ranks stopped, a read that never returns, a deadlock outside of collectives.
void check_hangs(Step& step) {
  const absl::Duration now = step.now.monotonic;
  std::vector<std::string> hung;  // conclude() may remove a job from the map.
  for (const auto& [uid, job] : step.state.jobs.live()) {
    if (!job.attempt || !job.attempt->start_sent || job.attempt->failing || !job.attempt->advanced_at) continue;
    // A stop has its own deadline.
    if (job.attempt->start_waits || job.record.state == job::JobState::kStopping) continue;
    const absl::Duration silent = now - *job.attempt->advanced_at;
    if (silent <= absl::Seconds(least_limit_seconds(job))) continue;  // Cheap check before a look at all its ranks.
    if (silent > hang_limit(job) && all_speak(step.state.nodes, *job.attempt)) hung.push_back(uid);
  }
  for (const std::string& uid : hung) {
    LiveJob& job = step.state.jobs.at(uid);
    const absl::Duration silent = now - *job.attempt->advanced_at;
    const std::string message =
        absl::StrCat("no rank has made progress for ", absl::FormatDuration(absl::Trunc(silent, absl::Seconds(1))),
                     ": ", who_hangs(*job.attempt));
    Change change;
    add_event(
        step, change, job,
        {.attempt = job.attempt->record.number, .reason = "AttemptHung", .message = message, .severity = "warning"});
    add_refusal(job, {"", "HANG", message}, change);
    conclude(step, job, std::move(change), silent);
  }
}

// A node that this process did not hear during its own pause was not silent.
void excuse_own_pause(Step& step) {
  const absl::Duration now = step.now.monotonic;
  const absl::Duration pause = step.state.pauses.tick(now);
  if (pause == absl::ZeroDuration()) return;
  step.state.nodes.excuse(pause, now);
  for (auto& [uid, job] : step.state.jobs.live()) {
    if (!job.attempt) continue;
    if (job.attempt->advanced_at) job.attempt->advanced_at = std::min(*job.attempt->advanced_at + pause, now);
    // Whatever began after the pause, before a tick noticed the pause, has its full time already.
    const absl::Duration prepared = std::max(now, step.state.cycles.earliest()) + step.options.prepare_timeout;
    const absl::Duration stopped = now + stop_time(job);
    if (job.attempt->prepare_by) job.attempt->prepare_by = std::min(*job.attempt->prepare_by + pause, prepared);
    if (job.attempt->stop_by) job.attempt->stop_by = std::min(*job.attempt->stop_by + pause, stopped);
    if (job.attempt->diagnose_by)
      job.attempt->diagnose_by = std::max(*job.attempt->diagnose_by, now + step.options.beat);
    for (auto& [node, part] : job.attempt->parts) {
      if (part.stop_by) part.stop_by = std::min(*part.stop_by + pause, stopped);
      part.last_advance = std::min(part.last_advance + pause, now);
      for (auto& [rank, seen] : part.ranks) seen.last_advance = std::min(seen.last_advance + pause, now);
    }
  }
}

}  // namespace titan::core
