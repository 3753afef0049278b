#pragma once

// Why an attempt ended, and whether there is another one. Pure: facts in, verdict out.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "controller/job/record.h"

namespace titan::job {

enum class Cause {
  kFinished,
  kCancelled,
  kTimeLimit,   // The job's time was over, and its ranks were asked to save and leave.
  kStopped,     // Ranks were asked to save and leave by something other than a cancel: a signal, a service stop.
  kRankKilled,  // A bare signal: blames neither the job nor the node.
  kRankFailed,  // A bug, an unexpected throw, or a peer lost without a named culprit.
  kOutOfMemory,
  kStorageError,
  kFenced,  // Somebody newer owns the dump folder.
  kShimLost,
  kNodeLost,
  kHang,          // Ranks lived and did nothing.
  kLaunchFailed,  // A node could not prepare or start its ranks.
  kUserError,     // Data, tokenizer, checkpoint or weights: the same one at the same step twice ends the job.
  kBadConfig,     // Never retried.
  kStaleAttempt,  // Its number was too low: a node or the dump folder has seen a newer attempt of the same job.
};
absl::string_view name(Cause cause);  // UPPER_SNAKE, as in Attempt.end_cause.
bool is_cause(absl::string_view text);

// A rank that lived until Titan ended it, and that had made no progress for long by then.
struct HungRank {
  int rank = 0;
  std::string node;
  std::string phase;  // Empty: it had no beacon yet.
  double seconds = 0;
};

struct EndFacts {
  std::vector<RankExit> exits;
  std::vector<ErrorReport> errors;
  std::vector<Refusal> refusals;
  std::vector<std::string> lost_nodes;
  bool cancelled = false;    // Somebody cancelled the job.
  bool out_of_time = false;  // Its time limit was over.
  int64_t stop_time_ns = 0;  // When the controller told what was left to die; 0: it did not.
  int num_ranks = 0;
  std::vector<HungRank> hung;  // Those that are furthest behind.
  std::string verdict;         // Of a diagnosis: who first went another way; empty: none was made, or nobody did.
  int newer_attempt = 0;       // Number of a newer attempt of the same job that was met; 0: none.
  std::string leader;          // The node of rank 0.
  bool elsewhere = false;      // There are nodes that could take ranks beside those of the attempt.
  std::map<std::string, std::string> drained = {};  // Nodes that were to be empty, and who wanted that; empty: unknown.
  double orphan_timeout_seconds = 0;                // After which ranks that hear of no controller leave.
  std::string actor = {};                           // Who cancelled it; empty: not known.
};

struct AttemptEnd {
  Cause cause = Cause::kRankFailed;
  std::string reason;      // Finer than the cause where something named it: NONFINITE_LOSS, DUMP_FOLDER_NOT_SHARED, ...
  std::string message;     // One line: which rank or node, and its own last words.
  bool never_ran = false;  // The rank program itself cannot be loaded: an installation to mend, no chance to repeat.
  std::string node;        // Where it happened, when that is one node.
  // Nodes that do not see one dump folder under its name: one of them has another mount, and nothing says which.
  std::vector<std::string> at_odds = {};
  bool elsewhere = false;  // Of these: there are nodes that could take ranks beside those of the attempt.
};

// The node lacks the job's dump folder or shows another one: perhaps a missing mount, so that another node may do.
bool is_lost_folder(const AttemptEnd& end);

// The node has not got the devices that it was asked for: somebody else holds them. Says nothing about the job.
bool is_want_of_devices(const AttemptEnd& end);

// A node could not even begin its part: its state folder is full, it is stopping, its shim does not start. Says nothing
// about the job, which waits as one in the queue does. Not of what the job's own launch file or dump folder caused.
bool is_refusal_of_node(const AttemptEnd& end);

// The root of an attempt's end. Ranks that failed because another one was gone, and ranks that the controller killed,
// are consequences and never the root while anything better is known.
AttemptEnd classify(const EndFacts& facts);

// What is kept of an attempt's exits and shown: at most kExitsKept, those that explain its end before those that follow
// from it, by rank.
std::vector<RankExit> most_telling(const std::map<int, RankExit>& exits);

// Takes a finished step or full commit into the history. True when it was never reached before: the counters start
// over.
bool note_progress(RestartHistory& history, int64_t step, int64_t commit);

struct Verdict {
  bool restart = false;
  double delay_seconds = 0;
  std::string failure_reason;  // When there is no restart.
  std::string failure_message;
};

// What follows an attempt that neither finished nor was cancelled. `step`: the last one that it finished.
// `jitter` in [0, 1) spreads the backoff by up to a quarter.
Verdict decide(const RestartPolicy& policy, RestartHistory& history, const AttemptEnd& end, int64_t step,
               double jitter);

}  // namespace titan::job
