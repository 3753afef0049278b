#pragma once

// A job that has not ended, as the core works on it. It runs ahead of the store by the changes that are not durable
// yet.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "controller/core/stray.h"
#include "controller/job/diagnosis.h"
#include "controller/job/record.h"
#include "controller/job/restart.h"
#include "controller/job/stragglers.h"

namespace titan::core {

// A rank as its newest beats showed it.
struct RankSeen {
  std::string phase;
  int64_t step = 0;
  int64_t counter = 0;
  absl::Duration last_advance;  // Monotonic time at which its counter last grew, or when it was first seen.
};

// True for phases that may take long without any sign of progress.
inline bool is_quiet(absl::string_view phase) {
  return phase == "load" || phase == "checkpoint" || phase == "validate" || phase == "exit";
}

// Steps that a node must show before its step time is trusted: the time to a short save or to the node's return looks
// like a step, too. For an attempt that an earlier controller process measured, one step is enough.
inline constexpr int kStepsToKnow = 3;

// One node's share of an attempt.
struct NodePart {
  job::Placement placement;
  std::vector<int> devices;  // Claimed for it: the placement's devices, or any free ones if those are not known.
  bool holds(int rank) const {
    return rank >= placement.first_rank && rank < placement.first_rank + placement.num_ranks;
  }
  bool prepared = false;
  bool started = false;                   // Every local rank is, or was, a process.
  bool ended = false;                     // Every local rank is gone, or its node is.
  bool lost = false;                      // Given up without the node's confirmation.
  bool overdue = false;                   // Given up although the node is connected, as after a missed deadline.
  bool asked_to_leave = false;            // By a drain. Not stored: a restarted controller asks again.
  std::optional<absl::Duration> stop_by;  // Monotonic. The part is not given up before, however late the Stop arrived.
  int64_t counter = 0;                    // Sum over ranks of their beacons' progress counters.
  absl::Duration last_advance = -absl::InfiniteDuration();  // Monotonic time at which `counter` last grew.
  int steps_measured = 0;
  std::map<int, RankSeen> ranks;  // By rank.
  // True if a rank of it is in a phase that may take long without any sign of progress.
  bool in_quiet_phase() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return is_quiet(rank.second.phase); });
  }
};

struct LiveAttempt {
  job::AttemptRecord record;
  std::map<std::string, NodePart> parts;  // By node.
  std::map<int, job::RankExit> exits;     // By rank. Each is a separate record until the attempt has ended.
  int exit_reports = 0;                   // Number of node reports that brought exits.
  std::vector<job::ErrorReport> errors;   // Each is a record with its index as the key.
  std::vector<job::Refusal> refusals;     // Each is a record with its index as the key.
  bool start_sent = false;
  bool start_waits = false;  // The start is not durable yet, and no node was notified.
  bool failing = false;      // A part has failed. The other ranks are killed, after any diagnosis.
  bool stop_waits = false;   // The stop is not durable yet, and no node was notified.
  int64_t stop_time_ns = 0;  // Unix time at which this process noticed its failure. 0: it has not failed.
  // Monotonic time by which the nodes must answer a diagnosis. While it is set, nothing of the attempt is killed or
  // forgotten.
  std::optional<absl::Duration> diagnose_by;
  std::set<std::string> to_answer;  // Nodes that have not answered yet.
  job::Findings findings;
  bool compared = false;   // The findings were handed out for comparison.
  bool diagnosed = false;  // The comparison is done, here or by an earlier controller process.
  bool loaded = false;     // Its ranks have reported the step from which they resume.
  bool recovered = false;  // It reached a step or commit that no attempt had reached before.
  int newer_attempt = 0;   // Number of a newer attempt of this job that a node or the dump folder has seen. 0: none.
  // Step of its newest logged line, or the one it resumed from. A restarted controller learns it from the next line.
  std::optional<int64_t> logged_step;
  // When any rank was last seen to progress (none before the first beat), and the longest time between two such
  // moments. An attempt that is slow by nature is not taken for hung.
  std::optional<absl::Duration> advanced_at;
  absl::Duration longest_pause;
  absl::Duration longest_working_pause;  // The same while it neither loads, saves nor validates.
  absl::Duration longest_step;           // Longest step of a node, measured under the same condition.
  struct Mark {
    absl::Duration at;
    int64_t step = 0;
  };
  std::optional<Mark> pace_since, pace_seen;          // The first and the newest sample of its steps. See pace.cc.
  std::optional<absl::Duration> ends_about;           // Monotonic: when it finishes its steps at its pace.
  job::Stragglers stragglers;                         // In memory only: a restarted controller starts over.
  std::optional<absl::Duration> prepare_by, stop_by;  // Deadlines for the commands to its nodes.
  // Monotonic times of this process. A restarted controller does not know them, and then the phases are not measured.
  std::optional<absl::Duration> placed_at, started_at, loaded_at, failed_at;

  std::string leader() const { return record.placements.front().node; }
  std::vector<std::string> nodes() const {
    std::vector<std::string> names;
    for (const auto& [node, part] : parts) names.push_back(node);
    return names;
  }
  int exits_on(const std::string& node) const {
    return static_cast<int>(
        std::count_if(exits.begin(), exits.end(), [&](const auto& exit) { return exit.second.node == node; }));
  }
  bool all(bool NodePart::*flag) const {
    for (const auto& [node, part] : parts) {
      if (!(part.*flag)) return false;
    }
    return true;
  }
  bool in_quiet_phase() const {
    return std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.second.in_quiet_phase(); });
  }
};

// A node may report attempts that an older copy of the store lacks. A number further ahead than this is not believed.
inline constexpr int kMaxAttemptsAhead = 10'000;

inline void note_newer_attempt(LiveAttempt& attempt, int number) {
  number = std::min(number, attempt.record.number + kMaxAttemptsAhead);
  if (number > attempt.record.number) attempt.newer_attempt = std::max(attempt.newer_attempt, number);
}

struct LiveJob {
  job::JobRecord record;
  std::vector<std::shared_ptr<const job::AttemptRecord>> past;  // Ended attempts.
  std::optional<LiveAttempt> attempt;                           // The one that has not ended.
  job::Progress progress;
  absl::Duration restart_at = absl::ZeroDuration();  // Monotonic end of the backoff, derived from the record.
  std::optional<absl::Duration> ends_by;             // Monotonic end of its time limit, derived from the record.
  // Phases `detect` and `stop` of the last failure. The next attempt's record begins with them.
  std::map<std::string, double> lost_seconds;
  // Since when it has no attempt: start of phase `place` and of the queue wait.
  std::optional<absl::Duration> idle_since;
  double save_seconds = 0;  // Duration of its newest checkpoint.
  std::string pending_reason, pending_message;
  std::map<std::string, std::vector<int>> held;  // Devices of record.reserved, by node.

  AttemptKey key() const { return {record.uid, attempt->record.number}; }  // The job must have an attempt.
  bool stops() const { return record.intent.stop; }
  void clear_pending() {
    pending_reason.clear();
    pending_message.clear();
  }
  bool waits_for_nodes() const {
    return !attempt && (record.state == job::JobState::kQueued || record.state == job::JobState::kRecovering);
  }
};

}  // namespace titan::core
