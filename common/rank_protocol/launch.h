#pragma once

// Defines the launch file that a rank process reads, its exit codes and its events (docs/worker-protocols.md, "Rank
// contract"), and the folded form of the launch file, in which consecutive nodes with equally many ranks share a row.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::rank_protocol {

// Newest version of the launch file.
inline constexpr int kVersion = 1;

struct RankPlacement {
  int rank = 0;
  int local_rank = 0;  // Index among the ranks of its node.
  std::string node;    // Node id.
  std::string host;    // Address at which other ranks reach it.
};

// The JSON file of an attempt, the same for every rank of a node.
struct Launch {
  int version = kVersion;
  std::string job;  // Full job name, for messages; empty without a control plane.
  std::string job_uid;
  int attempt = 1;        // Fencing token: the attempt may publish only while the dump folder's fence names it.
  nlohmann::json config;  // Resolved common/plan/config JobConfig, every key present.
  // In rank order; its size is the world size. A node's ranks are consecutive, with local ranks from 0 and one address.
  std::vector<RankPlacement> ranks;
  int threads_per_rank = 1;  // Fixed for the job's life, since results depend on it bit for bit.
  // Newest full step that the job is known to have committed; -1: none. An attempt that finds no step although one was
  // committed must not start over.
  int64_t committed_step = -1;
  std::string folder_id;  // Id of the dump folder (common/io/storage/folder_id.h); empty before the first attempt
                          // reported it.
  // End of the previous attempt. A controller with an older store learns it from a node.
  std::string previous_end_cause = {};  // In UPPER_SNAKE; empty: no previous attempt.
  std::string previous_end_message = {};
};

// Returns the launch file with a row in "nodes" for each node: its name, address and number of ranks.
nlohmann::json to_json(const Launch& launch);
// Reads the launch file in either form. Errors: InvalidArgument naming the missing or wrong member, or the version when
// it is newer than kVersion.
absl::StatusOr<Launch> launch_from_json(const nlohmann::json& json);
// Reads the file at `path`. Errors: the system's, InvalidArgument when it is not JSON, those of launch_from_json().
absl::StatusOr<Launch> read_launch(const std::string& path);

// Exit codes of titan-rank. Any other code, and any signal, is an infrastructure failure.
enum ExitCode : int {
  kExitFinished = 0,
  kExitInternal = 1,    // A bug or an unexpected exception.
  kExitUsage = 2,       // Bad flags.
  kExitBadConfig = 10,  // The configuration or launch file cannot be used. Not retried.
  kExitUserError = 11,  // Data, tokenizer, checkpoint or weights cannot be used; non-finite loss under policy "fail".
  kExitPeerLost = 12,   // A collective failed because another rank is gone.
  kExitOutOfMemory = 13,
  kExitStorage = 14,  // Disk full or I/O error.
  kExitFenced = 15,   // Another attempt or another job owns the dump folder.
  kExitStopped = 16,  // Stopped at a step edge on request, saved.
};

// Event kinds in a rank's spool. Every line is {"seq":n,"time":unix nanoseconds,"kind":...} plus the members listed
// here.
namespace event {
inline constexpr char kStarted[] = "started";               // pid
inline constexpr char kPhase[] = "phase";                   // phase, previous, and seconds spent in the previous phase:
                                                            // {"phase":"load","previous":"init","seconds":0.1}
inline constexpr char kLoaded[] = "loaded";                 // step, source: "checkpoint" | "initial" | "fresh"
inline constexpr char kRejected[] = "checkpoint_rejected";  // step, reason (text): a step that could not be used
inline constexpr char kStep[] = "step";                 // step, metrics {torchtitan's names}; rank 0, each logged step
inline constexpr char kStaged[] = "checkpoint_staged";  // step; training continues
inline constexpr char kCommitted[] = "checkpoint_committed";  // step, full (bool), seconds; rank 0
inline constexpr char kCheckpointFailed[] =
    "checkpoint_failed";                       // step, reason: a save that was given up; training continues
inline constexpr char kTrace[] = "trace";      // first_step, last_step, bytes: a requested trace is written
inline constexpr char kWarning[] = "warning";  // message
// class: user|infra|peer|fenced, reason UPPER_SNAKE, message; written before the exit. Class fenced also has the owner
// of the dump folder: holder_job (its name), holder_attempt, same_job (bool)
inline constexpr char kError[] = "error";
inline constexpr char kFinished[] = "finished";  // step
inline constexpr char kStopped[] = "stopped";    // step
}  // namespace event

// Environment variable by which the shim announces that it answers BeaconPage::stacks_wanted.
inline constexpr char kStacksVariable[] = "TITAN_SHIM_TAKES_STACKS";

// Nodes that are consecutive in rank order and have equally many ranks.
struct NodeRow {
  std::string names;  // Folded names (name_list.h).
  int ranks = 0;      // Ranks per node.
  std::string host;   // Address, if the row is the one node `addressed`; else empty.
};

// Returns where an attempt's ranks are, in rank order. Numbered names share a row, so the list stays short for many
// nodes. The node `addressed` gets a separate row with its address.
std::vector<NodeRow> node_rows(const Launch& launch, const std::string& addressed = "");

// Returns the launch file with these rows. The controller sends it without addresses to nodes that do not lead, and
// such a node stores it for its ranks with its own address. launch_from_json() reads it and leaves missing hosts empty.
nlohmann::json to_folded_json(const Launch& launch, const std::string& addressed = "");

}  // namespace titan::rank_protocol
