#pragma once

// Records of the store, as JSON objects: what the controller remembers of jobs, attempts and nodes. A member that an
// older record lacks takes its default, so members may be added freely. They are never renamed.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/rank_protocol/rank_exit.h"
#include "controller/job/state.h"
#include "nlohmann/json.hpp"

namespace titan::job {

using rank_protocol::RankExit;

// [restart] and the two time limits of [comm]: the longest collective until the first step is done, and after it.
struct RestartPolicy : config::RestartSection {
  double init_timeout_seconds = config::CommSection().init_timeout_seconds;
  double train_timeout_seconds = config::CommSection().train_timeout_seconds;
};

// The job's past, as the restart policy needs it.
struct RestartHistory {
  int without_progress = 0;          // Restarts since the last progress.
  int64_t best_step = 0;             // Highest finished step of any attempt.
  int64_t best_commit = 0;           // Newest full checkpoint.
  std::string user_error;            // Reason of the last user error.
  int64_t user_error_step = -1;      // Step of that error.
  std::vector<std::string> at_odds;  // Nodes of that error of which one has another dump folder.
  int stale_attempts = 0;            // Attempts that met a newer one of the same job.
  int taken_devices = 0;  // Attempts since the last progress that a node refused through no fault of the job.
};

// The part of a job's specification that scheduling needs. The full configuration is a separate record.
struct SchedulingSpec {
  std::string title;
  std::string dump_folder;  // Absolute, normalised.
  std::string device = "cpu";
  int ranks = 1;
  int ranks_per_node = 0;    // 0: the scheduler decides.
  int threads_per_rank = 0;  // 0: resolved at the first placement and kept.
  int priority = 0;
  int64_t time_limit_seconds = 0;  // For all attempts together, from the first placement. 0: no limit.
  int64_t total_steps = 0;
  std::string project = "default";
  std::string job_id;
  RestartPolicy restart;
  // The folder as the client saw it, to recognize it under another name. Either may be empty.
  std::string real_folder;  // Path without symbolic links.
  std::string folder_id;
  bool saves = true;                // False: its configuration turns checkpoints off.
  std::map<std::string, int> mesh;  // Axes of degree above 1 in the resolved configuration, by name ("tp").
};

// An accepted decision about a job. It is stored before it is carried out.
struct Intent {
  bool stop = false;                     // False: the job is to run.
  bool save = true;                      // For a stop: save at a step edge first.
  std::string cause;                     // UPPER_SNAKE: CANCELLED, TIME_LIMIT.
  std::string actor;                     // The caller. Empty: not known.
  int64_t time_ns = 0;                   // When it was accepted.
  int64_t deadline_ns = 0;               // For a stop: parts that have not ended by then are given up. 0: not known.
  std::vector<std::string> request_ids;  // The newest requests for it. Each gets the same answer when it is repeated.
};

struct JobRecord {
  std::string uid;
  std::string name;          // projects/{project}/jobs/{job}
  int64_t order = 0;         // Creation order: age in the queue, and page order of lists.
  std::string request_id;    // The request that created it.
  uint32_t fingerprint = 0;  // CRC of that request's content. Reuse of the id with other content is an error.
  JobState state = JobState::kQueued;
  std::string failure_reason;
  std::string failure_message;
  Intent intent;
  SchedulingSpec spec;
  RestartHistory history;
  int attempts = 0;          // Number of attempts, and of the newest one.
  int64_t events = 0;        // Number of events, and of the newest one.
  int threads_per_rank = 0;  // Resolved once, since results depend on it bit for bit.
  int64_t create_time_ns = 0;
  int64_t placed_time_ns = 0;  // First placement. The time limit begins then.
  int64_t start_time_ns = 0;   // First step of any attempt.
  int64_t end_time_ns = 0;
  std::string folder_id;                   // Id of the dump folder, from the first node that led an attempt.
  std::vector<std::string> avoided_nodes;  // Nodes that failed this job. They are used last.
  std::map<std::string, int> reserved;     // Number of devices, by node, that a recovering job comes back to.
  int64_t restart_time_ns = 0;             // End of its backoff.
  std::map<std::string, std::string> labels;
  std::string owner;  // The creator. Empty: not known.
  // The Unix user that the creator has proven to be. Empty: none. See v1.Prepare.
  std::string run_as;
  bool run_as_local = false;
};

struct Placement {
  std::string node;
  int first_rank = 0;
  int num_ranks = 0;
  // devices[i] is the device of rank first_rank + i. Empty: the node chose, and did not report them.
  std::vector<int> devices = {};
  // Compares which ranks are where, but not on which devices.
  bool operator==(const Placement& other) const {
    return node == other.node && first_rank == other.first_rank && num_ranks == other.num_ranks;
  }
};

// The end of a failed rank's log (common/rank_protocol/failed_ranks.h).
struct FailedLog {
  int64_t offset = 0;  // Offset of the text's first byte in the rank's whole log.
  std::string text;
};

// Values of AttemptRecord::logs_dropped.
inline constexpr char kNewerAttempts[] = "NEWER_ATTEMPTS";  // Newer attempts of the same job have logs.
inline constexpr char kNoSpace[] = "NO_ROOM";               // The limit over all jobs is reached.

inline constexpr size_t kExitsKept = 256;  // Per attempt.

// An error event that a rank wrote before it left.
struct ErrorReport {
  int rank = 0;
  std::string kind;    // "user", "infra", "peer" or "fenced".
  std::string reason;  // UPPER_SNAKE.
  std::string message;
  // For a fenced rank: the job that owns the dump folder now.
  std::string holder_job;
  int holder_attempt = 0;
  bool same_job = true;
};

// Why a node or the whole attempt could not continue, as the node reported or the controller noticed.
struct Refusal {
  std::string node;    // Empty: the attempt as a whole.
  std::string reason;  // UPPER_SNAKE: LAUNCH_FAILED, SHIM_LOST, DUMP_FOLDER_NOT_SHARED, HANG, ...
  std::string message;
  int highest_attempt = 0;  // Highest attempt of the job that the node has seen. 0: not reported.
};

struct AttemptRecord {
  int number = 0;
  std::vector<Placement> placements;  // The first one holds rank 0 and leads.
  int64_t start_time_ns = 0;
  int64_t first_step_time_ns = 0;
  int64_t end_time_ns = 0;
  int64_t resumed_step = 0;
  int64_t last_step = 0;
  std::string end_cause;
  std::string end_message;
  std::vector<RankExit> exits;  // At most kExitsKept. After the end: the most important ones, by rank.
  int num_exits = 0;            // Number of all exits.
  std::map<std::string, double> phase_seconds;
  std::string store_host;  // Known once prepared.
  int store_port = 0;
  int ranks = 0;                    // World size: the ranks of all placements.
  std::map<std::string, int> mesh;  // Axes of degree above 1, by name.
  int config_version = 1;           // Version of the job's configuration. 1: as submitted.
  bool diagnosed = false;           // The store has a diagnosis of its ranks.
  std::string verdict;              // First divergence by that diagnosis. Empty: not known.
  std::vector<int> named_ranks;     // The first few ranks that the diagnosis names.
  // Nodes that were silent when their part was given up. Its ranks may still run there.
  std::vector<std::string> left_on;
  std::string logs_dropped;  // Why ends of failed ranks' logs were dropped or not stored. Empty: they are stored.
};

struct Progress {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double tokens_per_second = 0;
  double mfu_percent = 0;  // 0: the device's peak is not known.
  // Tokens of the most popular expert divided by the mean. 0: the model has no experts.
  double expert_max_over_mean = 0;
  int64_t committed_step = 0;
  int64_t commit_time_ns = 0;  // When the controller heard of it. 0: there is none.
  std::string failed_save;     // Failure of the newest save: "step 12: No space left on device". Empty: it succeeded.
  int64_t update_time_ns = 0;
  double longest_step_seconds = 0;  // Measured from beats. A restarted controller derives its timeout from it.
};

// Most bytes of an event's message.
inline constexpr size_t kMaxMessageLength = 4096;

struct EventRecord {
  int64_t time_ns = 0;
  std::string job;  // Full name. For an event of a node: the job that the message names, or empty.
  std::string node;
  int attempt = 0;
  int rank = -1;
  std::string reason;
  std::string message;
  std::string severity = "info";
  std::string actor;  // The caller that caused it. Empty: the cluster itself.
};

// A failure of a job's attempt that was the node's own fault, or a loss of the node.
struct Blame {
  std::string job_uid;
  std::string reason;  // UPPER_SNAKE.
  int64_t time_ns = 0;
};

// A request to empty a node until it is put back into service.
struct Drain {
  std::string actor;    // The caller. Empty: not known.
  int64_t time_ns = 0;  // 0: not drained.
  std::string reason;
};

struct NodeRecord {
  std::string name;
  std::string instance;
  std::string address;
  std::string version;
  std::string device;
  int devices = 0;
  int cpu_cores = 0;
  int64_t memory_bytes = 0;
  std::string device_model;
  int64_t device_memory_bytes = 0;  // Memory of one device. 0: not known.
  bool cordoned = false;
  std::string cordon_reason;
  Drain drain;
  int64_t lease_epoch = 0;
  int64_t events = 0;
  std::vector<Blame> blames;  // Blames of the last day.
  std::map<std::string, std::string> labels;
};

// Remains of a deleted job, kept for a while.
struct Tombstone {
  std::string name;   // Full name.
  std::string actor;  // The caller that deleted it. Empty: the cluster itself, by age.
  int64_t time_ns = 0;
  std::string request_id;    // The request that created the job. If it is repeated, it creates no other job.
  uint32_t fingerprint = 0;  // CRC of that request's content.
};

// Returns a hash of what an update may change: priority, title, labels. Progress does not change it.
std::string etag(const JobRecord& record);

void to_json(nlohmann::json& json, const RestartPolicy& policy);
void from_json(const nlohmann::json& json, RestartPolicy& policy);
void to_json(nlohmann::json& json, const RestartHistory& history);
void from_json(const nlohmann::json& json, RestartHistory& history);
void to_json(nlohmann::json& json, const SchedulingSpec& spec);
void from_json(const nlohmann::json& json, SchedulingSpec& spec);
void to_json(nlohmann::json& json, const Placement& placement);
void from_json(const nlohmann::json& json, Placement& placement);
void to_json(nlohmann::json& json, const RankExit& exit);  // Omits the process, which only the shim uses.
void from_json(const nlohmann::json& json, RankExit& exit);
void to_json(nlohmann::json& json, const FailedLog& log);
void from_json(const nlohmann::json& json, FailedLog& log);
void to_json(nlohmann::json& json, const ErrorReport& error);
void from_json(const nlohmann::json& json, ErrorReport& error);
void to_json(nlohmann::json& json, const Refusal& refusal);
void from_json(const nlohmann::json& json, Refusal& refusal);
void to_json(nlohmann::json& json, JobState state);
void from_json(const nlohmann::json& json, JobState& state);
void to_json(nlohmann::json& json, const Progress& progress);  // Non-finite numbers become null and come back as NaN.
void from_json(const nlohmann::json& json, Progress& progress);
void to_json(nlohmann::json& json, const Intent& intent);
void from_json(const nlohmann::json& json, Intent& intent);
void to_json(nlohmann::json& json, const Drain& drain);
void from_json(const nlohmann::json& json, Drain& drain);
void to_json(nlohmann::json& json, const Blame& blame);
void from_json(const nlohmann::json& json, Blame& blame);
void to_json(nlohmann::json& json, const JobRecord& record);
void from_json(const nlohmann::json& json, JobRecord& record);
void to_json(nlohmann::json& json, const AttemptRecord& record);
void from_json(const nlohmann::json& json, AttemptRecord& record);
void to_json(nlohmann::json& json, const Tombstone& tombstone);
void from_json(const nlohmann::json& json, Tombstone& tombstone);
void to_json(nlohmann::json& json, const EventRecord& record);
void from_json(const nlohmann::json& json, EventRecord& record);
void to_json(nlohmann::json& json, const NodeRecord& record);
void from_json(const nlohmann::json& json, NodeRecord& record);

template <typename Record>
std::string encode(const Record& record) {
  // Text from outside may hold invalid UTF-8. A record must be writable whatever a rank printed.
  return nlohmann::json(record).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Reads the plain form that encode() writes, several times faster than decode() reads other forms. False: the text has
// another form.
template <typename Record>
bool read_quickly(const std::string&, Record&) {
  return false;
}
template <>
bool read_quickly(const std::string& text, JobRecord& record);
template <>
bool read_quickly(const std::string& text, AttemptRecord& record);
template <>
bool read_quickly(const std::string& text, Tombstone& tombstone);
template <>
bool read_quickly(const std::string& text, EventRecord& record);
template <>
bool read_quickly(const std::string& text, NodeRecord& record);

// Errors: DataLoss, which names what is wrong with the text.
template <typename Record>
absl::StatusOr<Record> decode(const std::string& text) {
  if (Record record; read_quickly(text, record)) return record;
  try {
    return nlohmann::json::parse(text).get<Record>();
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(error.what());
  }
}

}  // namespace titan::job

// The JSON library looks for both functions in the type's own namespace, which knows nothing of the store.
template <>
struct nlohmann::adl_serializer<titan::job::RankExit> {
  static void to_json(json& json, const titan::job::RankExit& exit) { titan::job::to_json(json, exit); }
  static void from_json(const json& json, titan::job::RankExit& exit) { titan::job::from_json(json, exit); }
};
