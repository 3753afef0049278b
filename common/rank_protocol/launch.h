#pragma once

// Defines what a rank process is given and what it reports back, as plain files (docs/worker-protocols.md, "Rank
// contract"), and the folded form of the launch file, in which nodes that are alike share a row.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::rank_protocol {

// The newest version of the launch file.
inline constexpr int kVersion = 1;

struct RankPlace {
  int rank = 0;
  int local_rank = 0;  // Index among the ranks of its node.
  std::string node;    // Node id.
  std::string host;    // Where other ranks reach it.
};

// The one JSON file of an attempt; every rank of every node gets the same.
struct Launch {
  int version = kVersion;
  std::string job;  // Full job name, for messages; empty without a control plane.
  std::string job_uid;
  int attempt = 1;        // Fencing token: publishing is allowed only while the dump folder's fence names it.
  nlohmann::json config;  // Resolved common/plan/config JobConfig, every key present.
  // In rank order; size is the world size. A node's ranks follow each other, with local ranks from 0 and one address.
  std::vector<RankPlace> ranks;
  int threads_per_rank = 1;  // Fixed for the job's life: results depend on it bit for bit.
  // Newest full step that the job is known to have committed; -1: none. An attempt that finds no step although there
  // was one must not start over.
  int64_t committed_step = -1;
  std::string folder_id;  // Of the dump folder (common/io/storage/folder_id.h); empty before the first attempt saw it.
  // How the attempt before this one ended: a controller whose store is older than that learns it from a node.
  std::string previous_end_cause = {};  // UPPER_SNAKE; empty: there was none.
  std::string previous_end_message = {};
};

// Every node has a row in "nodes", with its address and number of ranks.
nlohmann::json to_json(const Launch& launch);
// Rows may be of many nodes, too. Errors: InvalidArgument naming the missing or wrong member, or the
// version when it is newer than kVersion.
absl::StatusOr<Launch> launch_from_json(const nlohmann::json& json);
absl::StatusOr<Launch> read_launch(const std::string& path);

// Exit codes of titan-rank; anything else, and any signal, is an infrastructure failure.
enum ExitCode : int {
  kExitFinished = 0,
  kExitInternal = 1,    // A bug or an unexpected throw.
  kExitUsage = 2,       // Bad flags.
  kExitBadConfig = 10,  // The configuration or launch file cannot be used. Not retried.
  kExitUserError = 11,  // Data, tokenizer, checkpoint or weights cannot be used; non-finite loss under policy "fail".
  kExitPeerLost = 12,   // A collective failed because another rank is gone.
  kExitOutOfMemory = 13,
  kExitStorage = 14,  // Disk full or I/O error.
  kExitFenced = 15,   // Somebody else owns the dump folder: a newer attempt, or another job.
  kExitStopped = 16,  // Stopped at a step edge on request, saved.
};

// Event kinds in a rank's spool. Every line: {"seq":n,"time":unix nanoseconds,"kind":...} plus the members listed.
namespace event {
inline constexpr char kStarted[] = "started";  // pid
inline constexpr char kPhase[] =
    "phase";  // phase, seconds of the previous one: {"phase":"load","previous":"init","seconds":0.1}
inline constexpr char kLoaded[] = "loaded";                 // step, source: "checkpoint" | "initial" | "fresh"
inline constexpr char kRejected[] = "checkpoint_rejected";  // step, reason (text): a step that could not be used
inline constexpr char kStep[] = "step";                 // step, metrics {torchtitan's names}; rank 0, each logged step
inline constexpr char kStaged[] = "checkpoint_staged";  // step; training goes on
inline constexpr char kCommitted[] = "checkpoint_committed";  // step, full (bool), seconds; rank 0
inline constexpr char kCheckpointFailed[] =
    "checkpoint_failed";                       // step, reason: a save that was given up; training goes on
inline constexpr char kTrace[] = "trace";      // first_step, last_step, bytes: a trace that was asked for is written
inline constexpr char kWarning[] = "warning";  // message
// class: user|infra|peer|fenced, reason UPPER_SNAKE, message; before exit. Of class fenced also who has the dump
// folder: holder_job (its name), holder_attempt, same_job (bool)
inline constexpr char kError[] = "error";
inline constexpr char kFinished[] = "finished";  // step
inline constexpr char kStopped[] = "stopped";    // step
}  // namespace event

// Entry of a rank's environment: its shim answers BeaconPage::stacks_wanted.
inline constexpr char kStacksVariable[] = "TITAN_SHIM_TAKES_STACKS";

// Nodes that follow each other in rank order, with equally many ranks each.
struct NodeRow {
  std::string names;  // Folded (name_list.h).
  int ranks = 0;      // Of each of them.
  std::string host;   // Of a row that is one node with its address; else empty.
};

// Where an attempt's ranks are, in rank order. Names are told together, so that it does not grow with nodes that are
// counted through. `addressed`: a node that has a row with its address.
std::vector<NodeRow> node_rows(const Launch& launch, const std::string& addressed = "");

// By such rows: sent to a node that does not lead, without any address, and what a node keeps for its ranks, with its
// own alone. launch_from_json() reads it, with empty hosts.
nlohmann::json to_folded_json(const Launch& launch, const std::string& addressed = "");

}  // namespace titan::rank_protocol
