#pragma once

// Finds out why an attempt ended, and decides whether another one follows. Pure: facts in, verdict out.

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
  kTimeLimit,   // The job's time limit was over, and its ranks had to save and leave.
  kStopped,     // Ranks had to save and leave for another reason than a cancel: a signal, a service stop.
  kRankKilled,  // A signal without further cause. Neither the job nor the node is blamed.
  kRankFailed,  // A bug, an unexpected throw, or a peer lost without a named culprit.
  kOutOfMemory,
  kStorageError,
  kFenced,  // A newer owner has the dump folder.
  kShimLost,
  kNodeLost,
  kHang,          // Ranks were alive and made no progress.
  kLaunchFailed,  // A node could not prepare or start its ranks.
  kUserError,     // Data, tokenizer, checkpoint or weights. The same one at the same step twice ends the job.
  kBadConfig,     // Never retried.
  kStaleAttempt,  // Its number was too low: a node or the dump folder has seen a newer attempt of the same job.
};
absl::string_view name(Cause cause);  // UPPER_SNAKE, as in Attempt.end_cause.
bool is_cause(absl::string_view text);

// A rank that was alive until Titan ended it, but had made no progress for long.
struct HungRank {
  int rank = 0;
  std::string node;
  std::string phase;   // Empty: it had no beacon yet.
  double seconds = 0;  // Time without progress.
};

struct EndFacts {
  std::vector<RankExit> exits;
  std::vector<ErrorReport> errors;
  std::vector<Refusal> refusals;
  std::vector<std::string> lost_nodes;
  bool cancelled = false;    // Somebody cancelled the job.
  bool out_of_time = false;  // Its time limit was over.
  int64_t stop_time_ns = 0;  // When the controller ordered the rest to end. 0: it did not.
  int num_ranks = 0;
  std::vector<HungRank> hung;  // The ranks that are furthest behind.
  std::string verdict;         // Result of a diagnosis: who diverged first. Empty: there was none, or nobody did.
  int newer_attempt = 0;       // Number of a newer attempt of the same job that was found. 0: none.
  std::string leader;          // The node of rank 0.
  bool elsewhere = false;      // Nodes outside the attempt could take its ranks.
  std::map<std::string, std::string> drained = {};  // Drained nodes, and who drained them. Empty actor: not known.
  double orphan_timeout_seconds = 0;                // Ranks leave after this time without a controller.
  std::string actor = {};                           // The caller that cancelled it. Empty: not known.
};

struct AttemptEnd {
  Cause cause = Cause::kRankFailed;
  std::string reason;   // Finer than the cause, if known: NONFINITE_LOSS, DUMP_FOLDER_NOT_SHARED, ...
  std::string message;  // One line: which rank or node, and its last message.
  // The rank program cannot be loaded. The installation must be repaired: a retry does not help.
  bool never_ran = false;
  std::string node;  // Where it happened, if that is one node.
  // Nodes that see different dump folders under one name. One of them has another mount, and nothing shows which.
  std::vector<std::string> at_odds = {};
  bool elsewhere = false;  // For at_odds: nodes outside the attempt could take its ranks.
};

// True if the node shows another dump folder, or one without the job's checkpoints. A mount may be missing there, so
// another node may do.
bool is_lost_folder(const AttemptEnd& end);

// True if the node does not have the requested devices because others hold them. The job is not at fault.
bool lacks_devices(const AttemptEnd& end);

// True if a node could not even begin its part: its state folder is full, it is stopping, or its shim or the rank
// program does not start. The job is not at fault and waits like a queued one. False if the job's own launch file or
// dump folder was the cause.
bool is_refusal_of_node(const AttemptEnd& end);

// Finds the root cause of an attempt's end. Ranks that failed because another one was gone, and ranks that the
// controller killed, are consequences: they are the root only if nothing better is known.
AttemptEnd classify(const EndFacts& facts);

// Selects the exits to keep and show: at most kExitsKept, those with stored logs first, then causes before
// consequences. Returns them by rank.
std::vector<RankExit> most_relevant(const std::map<int, RankExit>& exits);

// Records a finished step or full commit. True: it was never reached before, and the counters start over.
bool note_progress(RestartHistory& history, int64_t step, int64_t commit);

struct Verdict {
  bool restart = false;
  double delay_seconds = 0;
  std::string failure_reason;  // Set unless it restarts.
  std::string failure_message;
};

// Decides what follows an attempt that neither finished nor was cancelled. `step` is the last one that it finished.
// Counts the outcome in `history`. `jitter` in [0, 1) spreads the backoff by up to a quarter.
Verdict decide(const RestartPolicy& policy, RestartHistory& history, const AttemptEnd& end, int64_t step,
               double jitter);

}  // namespace titan::job
