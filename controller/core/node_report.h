#pragma once

// What a node says, as values. Numbers and texts are as the node sent them: what they may be is checked where they are
// used.

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

// Names a stream for as long as the process lives; 0 names none.
using SessionId = int64_t;

// How far an attempt is on a node.
enum class PartPhase {
  kUnknown,    // Not given, or of a newer version.
  kPreparing,  // It holds its devices, and what becomes of it will be reported.
  kPrepared,
  kStarted,  // Every local rank is a live process.
  kEnded,    // Every local rank is gone; its exits are complete.
  kRefused,
};

struct RankStatus {
  int rank = 0;
  int64_t step = 0;  // Finished steps.
  std::string phase;
  int64_t counter = 0;  // Grows with any progress.
  // Steps of which the rank has measured its own part, and the sum of these parts.
  int64_t own_steps = 0;
  int64_t own_nanoseconds = 0;
};

// A live attempt, or one that has ended and was not forgotten yet.
struct AttemptInventory {
  AttemptKey attempt;
  PartPhase phase = PartPhase::kUnknown;
  std::vector<RankStatus> ranks;
  // As the attempt's launch file has them.
  std::string job;                            // Full name; empty when that file cannot be read.
  std::vector<rank_protocol::NodeRow> nodes;  // Of the whole attempt, in rank order.
  int64_t start_time_ns = 0;
  int devices = 0;  // That it holds on this node.
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
  std::string cluster;  // Empty: the first that it meets.
  std::string device;
  int devices = 0;
  int cpu_cores = 0;
  int64_t memory_bytes = 0;
  std::string device_model;
  int64_t device_memory_bytes = 0;
  std::map<std::string, std::string> labels;
  std::string boot_id;  // Empty: of a worker of an older version.
  int64_t boot_nanoseconds = 0;
  bool diagnoses = false;        // It answers Diagnose.
  std::string unusable;          // As in a Beat.
  int64_t unix_nanoseconds = 0;  // Likewise.
  std::vector<AttemptInventory> inventory;
};

struct AttemptBeat {
  AttemptKey attempt;
  std::vector<RankStatus> ranks;
};
struct Beat {
  int64_t sequence = 0;
  std::vector<AttemptBeat> attempts;
  absl::Duration unanswered;     // For so long the worker has had no answer to its beats.
  std::string unusable;          // Why no rank can be prepared there; empty: one can.
  int64_t unix_nanoseconds = 0;  // The worker's clock; 0: not given.
};

// Its node and what was kept of its log are not for the node to say.
struct ReportedExit {
  job::RankExit exit;
  job::FailedLog log;  // Empty: the node did not send its end.
};
struct AttemptReport {
  AttemptKey attempt;
  PartPhase phase = PartPhase::kUnknown;
  int store_port = 0;
  std::string error_reason;  // UPPER_SNAKE.
  std::string error_message;
  std::vector<ReportedExit> exits;
  std::string folder_id;
  int highest_attempt = 0;     // Of the job that the node has seen.
  bool holds_devices = false;  // It is refused, and a process of it is not gone.
  bool stopped = false;        // It has ended, and some controller had told the node to stop it.
};

struct RankLine {
  int64_t sequence = 0;
  std::optional<RankEvent> event;  // None: the line means nothing to the controller.
};
// A part of a rank's spool that held no events, or could not be read.
struct SpoolDamage {
  int64_t offset = 0;
  std::string message;
};
struct RankEvents {
  AttemptKey attempt;
  int rank = 0;
  std::vector<RankLine> lines;
  std::vector<SpoolDamage> damage;
};

// One rank a message.
struct Diagnosis {
  AttemptKey attempt;
  std::optional<job::RankFinding> found;  // Of rank found->flight.rank; none: the node knows nothing of the attempt.
  bool end = false;                       // The last one of the node.
};

// The answer to a question that another node was asked.
struct MisdirectedAnswer {};
// A message that means nothing in an open session: all it shows is that the node lives.
struct OtherReport {};

using NodeReport = std::variant<OtherReport, Beat, AttemptReport, RankEvents, Diagnosis, MisdirectedAnswer>;

}  // namespace titan::core
