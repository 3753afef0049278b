#pragma once

// Messages of nodes, as values. Numbers and texts are as the node sent them: they are checked where they are used.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/rank_protocol/launch.h"
#include "controller/core/rank_event.h"
#include "controller/core/stray.h"
#include "controller/job/diagnosis.h"
#include "controller/job/record.h"

namespace titan::core {

// Identifies a worker's stream for the life of this process. 0: no session.
using SessionId = int64_t;

// How far an attempt has come on a node.
enum class PartPhase {
  kUnknown,    // Not given, or from a newer version.
  kPreparing,  // It holds its devices. The outcome is reported later.
  kPrepared,
  kStarted,  // Every local rank is a live process.
  kEnded,    // Every local rank is gone, and its exits are complete.
  kRefused,
};

struct RankStatus {
  int rank = 0;
  int64_t step = 0;  // Finished steps.
  std::string phase;
  int64_t counter = 0;  // Grows with any progress.
  // Steps for which the rank measured its own time, and the sum of these times.
  int64_t own_steps = 0;
  int64_t own_nanoseconds = 0;
};

// An attempt that runs on the node, or that has ended there and was not forgotten yet.
struct AttemptInventory {
  AttemptKey attempt;
  PartPhase phase = PartPhase::kUnknown;
  std::vector<RankStatus> ranks;
  // The fields below come from the attempt's launch file, or describe its devices on this node.
  std::string job;                            // Full name. Empty if that file cannot be read.
  std::vector<rank_protocol::NodeRow> nodes;  // All nodes of the attempt, in rank order.
  int64_t start_time_ns = 0;
  int devices = 0;  // Number of devices that it holds on this node.
  int threads_per_rank = 0;
  std::vector<int> device_indices;
  int64_t resumed_step = 0;
  std::string previous_end_cause, previous_end_message;  // How the attempt before it ended.
};

struct Registration {
  std::string node;
  std::string instance;  // Random id of the worker's state folder.
  std::string address;
  std::string version;
  std::string cluster;  // Empty: the worker follows the first cluster that it meets.
  std::string device;
  int devices = 0;
  int cpu_cores = 0;
  int64_t memory_bytes = 0;
  std::string device_model;
  int64_t device_memory_bytes = 0;
  std::map<std::string, std::string> labels;
  std::string boot_id;           // Boot of the machine. Empty: the worker has an older version.
  int64_t boot_nanoseconds = 0;  // Time since that boot when the message was written.
  bool diagnoses = false;        // It answers Diagnose.
  std::string unusable;          // See Beat.
  int64_t unix_nanoseconds = 0;  // See Beat.
  std::vector<AttemptInventory> inventory;
};

struct AttemptBeat {
  AttemptKey attempt;
  std::vector<RankStatus> ranks;
};
struct Beat {
  int64_t sequence = 0;
  std::vector<AttemptBeat> attempts;
  absl::Duration unanswered;     // How long the worker has had no answer to its beats.
  std::string unusable;          // Why no rank can be prepared there. Empty: ranks can be prepared.
  int64_t unix_nanoseconds = 0;  // The worker's clock. 0: not given.
};

// The node reports neither its own name nor what the controller keeps of the log: the core fills in both.
struct ReportedExit {
  job::RankExit exit;
  job::FailedLog log;  // Empty: the node did not send the end of its log.
};
struct AttemptReport {
  AttemptKey attempt;
  PartPhase phase = PartPhase::kUnknown;
  int store_port = 0;
  std::string error_reason;  // UPPER_SNAKE.
  std::string error_message;
  std::vector<ReportedExit> exits;
  std::string folder_id;
  int highest_attempt = 0;     // Highest attempt of the job that the node has seen.
  bool holds_devices = false;  // The attempt was refused, but one of its processes is not gone.
  bool stopped = false;        // It has ended after some controller ordered the node to stop it.
};

struct RankLine {
  int64_t sequence = 0;
  std::optional<RankEvent> event;  // None: the controller has no use for the line.
};
// A part of a rank's spool that has no events or cannot be read.
struct ReportedSpoolDamage {
  int64_t offset = 0;
  std::string message;
};
struct RankEvents {
  AttemptKey attempt;
  int rank = 0;
  std::vector<RankLine> lines;
  std::vector<ReportedSpoolDamage> damage;
};

// Describes one rank. A node answers with one message per rank.
struct Diagnosis {
  AttemptKey attempt;
  std::optional<job::RankFinding> found;  // About rank found->flight.rank. None: the node does not know the attempt.
  bool end = false;                       // The node's last message.
};

// An answer to a query that was sent to another node.
struct MisdirectedAnswer {};
// A message that has no meaning in an open session. It only shows that the node is alive.
struct OtherReport {};

using NodeReport = std::variant<OtherReport, Beat, AttemptReport, RankEvents, Diagnosis, MisdirectedAnswer>;

}  // namespace titan::core
