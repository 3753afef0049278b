#pragma once

// A job that is not over, as the core works on it: ahead of the store by what is on its way there.

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

// A rank as the last beats showed it.
struct RankSeen {
  std::string phase;
  int64_t step = 0;
  int64_t counter = 0;
  absl::Duration last_advance;  // Monotonic time at which its counter last grew, or when it was first seen.
};

// Phases that may take long without a sign of life between their begin and end.
inline bool is_quiet(absl::string_view phase) {
  return phase == "load" || phase == "checkpoint" || phase == "validate" || phase == "exit";
}

// The time to a short save and a return of the node look like a step: what is shown first is no measure. Of an attempt
// that a predecessor of this controller knew, one has to do.
inline constexpr int kStepsToKnow = 3;

// One node's share of an attempt.
struct NodePart {
  job::Placement placement;
  std::vector<int> devices;  // Claimed for it: the placement's, or some when nobody has said which.
  bool holds(int rank) const {
    return rank >= placement.first_rank && rank < placement.first_rank + placement.num_ranks;
  }
  bool prepared = false;
  bool started = false;                   // Every local rank is, or was, a process.
  bool ended = false;                     // Every local rank is gone, or the node is.
  bool lost = false;                      // Given up without the node's word,
  bool overdue = false;                   // although the node speaks: it did not do in time what it was told.
  bool asked_to_leave = false;            // By a drain; a restarted controller asks anew.
  std::optional<absl::Duration> stop_by;  // Not given up before, however late it could be told to stop.
  int64_t counter = 0;                    // Sum over ranks of their beacons' progress counters.
  absl::Duration last_advance = -absl::InfiniteDuration();  // Monotonic time at which it last grew.
  int steps_measured = 0;
  std::map<int, RankSeen> ranks;  // By rank.
  // Whether a rank of it does what may take long and shows nothing.
  bool in_quiet_phase() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return is_quiet(rank.second.phase); });
  }
};

struct LiveAttempt {
  job::AttemptRecord record;
  std::map<std::string, NodePart> parts;  // By node.
  std::map<int, job::RankExit> exits;     // By rank; each is a record of its own until the attempt has ended.
  int exit_reports = 0;                   // Reports of nodes that told exits.
  std::vector<job::ErrorReport> errors;   // Likewise records,
  std::vector<job::Refusal> refusals;     // by their place here.
  bool start_sent = false;
  bool start_waits = false;  // Until that is durable: nobody has been told yet.
  bool failing = false;      // What is left of it is being killed.
  bool stop_waits = false;   // Until that is durable: nobody has been told to yet.
  int64_t stop_time_ns = 0;  // When the controller told it to die.
  // Its nodes are asked what its ranks do: until then at most, before anything of it is killed or forgotten.
  std::optional<absl::Duration> diagnose_by;
  std::set<std::string> to_answer;  // Nodes.
  job::Findings findings;
  bool compared = false;   // They are, by now or soon.
  bool diagnosed = false;  // They were asked, or nobody could be.
  bool loaded = false;     // Ranks have said from which step they go on.
  bool recovered = false;  // Reached a step or commit that no attempt had reached.
  int newer_attempt = 0;   // Number of a newer attempt of this job that a node or the dump folder has seen.
  // Step of its last line of figures, or that it goes on from; a restarted controller knows it from the next line on.
  std::optional<int64_t> logged_step;
  // When any rank was last seen doing something (none before the first beat), and the longest time between two such
  // moments: what is slow by nature does not hang.
  std::optional<absl::Duration> advanced_at;
  absl::Duration longest_pause;
  absl::Duration longest_working_pause;  // While it neither loads, saves nor validates.
  absl::Duration longest_step;           // Likewise while nothing but steps was made.
  struct Mark {
    absl::Duration at;
    int64_t step = 0;
  };
  std::optional<Mark> pace_since, pace_seen;          // The first look at its steps, and the newest. See pace.cc.
  std::optional<absl::Duration> ends_about;           // Monotonic: when its steps are done, at its pace.
  job::Stragglers stragglers;                         // Of this process: a restarted controller begins anew.
  std::optional<absl::Duration> prepare_by, stop_by;  // Deadlines for what its nodes were told.
  // Monotonic marks of this process; a restarted controller knows none of them, and then the phases stay unmeasured.
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

// Nobody is further ahead of a store than a copy of it can be old.
inline constexpr int kMostBehind = 10'000;  // Attempts of one job.

inline void note_newer_attempt(LiveAttempt& attempt, int number) {
  number = std::min(number, attempt.record.number + kMostBehind);
  if (number > attempt.record.number) attempt.newer_attempt = std::max(attempt.newer_attempt, number);
}

struct LiveJob {
  job::JobRecord record;
  std::vector<std::shared_ptr<const job::AttemptRecord>> past;  // Ended attempts.
  std::optional<LiveAttempt> attempt;                           // The one that has not ended.
  job::Progress progress;
  absl::Duration restart_at = absl::ZeroDuration();  // Monotonic; the backoff's end as the record has it.
  std::optional<absl::Duration> ends_by;             // Monotonic; its time limit is over then, as the record has it.
  std::map<std::string, double> lost_seconds;  // detect and stop of the last failure: the next attempt's first phases.
  std::optional<absl::Duration> idle_since;    // No attempt since then: place and queue wait begin here.
  double save_seconds = 0;                     // That its newest checkpoint took.
  std::string pending_reason, pending_message;
  std::map<std::string, std::vector<int>> held;  // The devices of record.reserved.

  AttemptKey key() const { return {record.uid, attempt->record.number}; }  // Of its attempt, which it must have.
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
