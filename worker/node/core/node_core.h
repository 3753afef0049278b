#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker/node/core/values.h"

namespace titan::node {

// Settings that do not change while the daemon runs.
struct NodeConfig {
  std::string node;
  std::string address;
  std::string version;
  std::string instance;
  std::string boot_id;  // Boot id of the machine; monotonic time starts with the boot.
  v1::NodeResources resources;
  std::map<std::string, std::string> labels;
  bool adopt_cluster = false;
  bool stop_ranks_on_exit = false;
  absl::Duration stop_grace = absl::Seconds(30);
  absl::Duration token_timeout = absl::Seconds(5);  // Shared storage may show the token late.
};

// Intervals of beats, and how long the node waits before it reports that something takes too long.
inline constexpr absl::Duration kMaxBeatInterval = absl::Seconds(1);  // Upper bound of the interval.
inline constexpr int64_t kBeatsPerLease = 5;  // The controller expects this many beats within a short lease.
inline constexpr absl::Duration kMinBeatInterval = absl::Milliseconds(20);  // Lower bound, however short the lease.
inline constexpr absl::Duration kPrepareTimeout = absl::Seconds(60);  // Taking a lock on shared storage may take 30 s.
inline constexpr absl::Duration kStartTimeout = absl::Seconds(30);    // In addition to token_timeout.
// Time after the grace period at which a shim that still runs is killed: a hanging shim cannot end its ranks.
inline constexpr absl::Duration kShimTimeout = absl::Seconds(3);
// Time after the grace period at which ranks that still run, because they cannot be killed, are reported.
inline constexpr absl::Duration kStopTimeout = absl::Seconds(10);
inline constexpr absl::Duration kWriteTimeout = absl::Seconds(5);  // For writing a record.
inline constexpr absl::Duration kSpoolTimeout = absl::Seconds(1);  // For events that precede a report.
// Limit for the stacks of all ranks, unless the controller allows less.
inline constexpr absl::Duration kStacksTimeout = absl::Seconds(5);
inline constexpr absl::Duration kExitsTimeout = absl::Seconds(10);  // For exit records that cannot be read.
inline constexpr size_t kMaxLatePreparations = 16;                  // Each occupies a hanging thread.

enum class Stage {
  kFencing,    // The fence is being written.
  kWaiting,    // Waits until older attempts of its job are gone and stopping attempts free their devices.
  kRecording,  // The record is being written.
  kPreparing,  // The folders are being created.
  kSpawning,   // The shim has not reported yet.
  kSaving,     // The record of the live attempt is being written; PREPARED is reported after that.
  kLive,
  kFinishing,  // The record of its end is being written; the end is reported after that.
  kOver,
  kForgetting,
};

// State of an attempt's shim and of the link to it.
enum class ShimState {
  kNone,      // Never spawned.
  kSpawning,  // No link yet.
  kLinked,
  kLost,  // No link, but it may be alive.
  kGone,  // Ended, with all its ranks.
};

struct RankState {
  int rank = 0;
  int64_t pid = 0;
  int64_t start_ticks = 0;
  bool running = false;
  std::optional<rank_protocol::RankExit> exit;
  bool exit_unreported = false;
  SpoolTail tail;
  Op reading = 0;
  bool more = true;          // There may be events that were not read.
  std::string unread;        // Reported reason why its events cannot be read.
  bool named = false;        // The attempt's verdict names this rank.
  bool tail_wanted = false;  // The controller needs the end of its log.
  Op reading_tail = 0;       // The read of the log's end that is in progress.
  std::string log_tail;
  int64_t log_offset = 0;
  bool log_tail_sent = false;  // The log's end was sent in this session.
  std::optional<v1::RankStatus> beacon;
  absl::Duration phase_since;
};

struct Attempt {
  AttemptRecord record;
  Stage stage = Stage::kFencing;
  Op op = 0;  // The effect that the stage waits for.
  std::vector<RankState> ranks;
  LaunchFacts facts;
  std::optional<int64_t> resumed_step;  // Reported by its ranks; unknown to a daemon that started after that.
  std::string launch_json;              // Kept until the folder is prepared.
  std::vector<int> requested_devices;   // Chosen by the controller, one per rank. Empty: any.
  absl::Duration prepare_by = kNever;   // kNever: the preparation was answered.

  ShimState shim = ShimState::kNone;
  Op link = 0;  // Set in kSpawning and kLinked.
  int64_t shim_pid = 0;
  int64_t shim_ticks = 0;
  std::string boot;
  absl::Duration shim_heard;
  Op finding = 0;
  absl::Duration find_at = kNever;
  int looks = 0;
  std::string unknown;               // Reported reason why it is unknown whether the shim or the ranks are alive.
  std::vector<ShimCommand> pending;  // Commands that wait for a link to the shim.

  bool was_live = false;             // PREPARED was reported, or the record says so.
  bool started = false;              // The shim has started the ranks.
  std::optional<ShimCommand> start;  // A Start command, kept until the ranks have started.
  Op checking_token = 0;
  bool token_seen = false;
  absl::Duration start_by = kNever;
  int store_port = 0;

  enum class End { kNo, kEnded, kShimLost };
  End end = End::kNo;  // How the shim ended. kNo: it has not. kEnded: after all its ranks.
  Op checking = 0;
  absl::Duration check_at = kNever;
  absl::Duration exits_by;
  std::string exits_damage;  // Already logged.

  bool stopping = false;
  absl::Duration kill_shim_at = kNever;
  absl::Duration stop_overdue_at = kNever;
  bool overdue = false;  // Reports STOP_TIMEOUT with overdue_message until the attempt is over.
  std::string overdue_message;
  absl::Duration overdue_report_by = kNever;
  absl::Duration stop_asked_at;
  bool forget = false;                       // Forget the attempt once it is over.
  std::vector<v1::ControllerMessage> after;  // Commands that came while it was being forgotten; obeyed after that.

  // A diagnosis in progress: the request, its session, and the deadline for the stacks.
  std::optional<v1::Diagnose> diagnose;
  int64_t diagnose_session = 0;
  absl::Duration diagnose_by = kNever;

  absl::Duration report_by = kNever;  // Deadline of a full report, which waits for the events.
  absl::Duration exits_report_by = kNever;
  Op writing_places = 0;
  bool places_changed = false;
  Op writing_again = 0;  // Repeats the write of a final record that failed.
  absl::Duration write_again_at = kNever;
  absl::Duration finish_by = kNever;
  int64_t log_bytes_dropped = 0;

  int memory_kills() const;  // Number of its ranks on this node that ran out of memory.
  bool over() const { return stage >= Stage::kOver; }
  bool ending() const { return stage >= Stage::kFinishing; }
  bool announced() const;  // The controller may know the attempt from this node.
  bool shim_may_live() const { return shim != ShimState::kNone && shim != ShimState::kGone; }
  bool holds_devices() const;
};

// An effect that is in progress.
struct Pending {
  enum class Kind {
    kFence,
    kAddRecord,
    kLive,
    kFinish,
    kAgain,
    kPrepare,
    kToken,
    kSpawn,
    kFind,
    kCheck,
    kSpool,
    kLogTail,
    kPlaces,
    kForget,
    kCleanUp,
    kCluster,
    kEpoch,
  };
  Kind kind = Kind::kFence;
  AttemptKey key;
  int rank = 0;
  int64_t offset = 0;
  AttemptRecord record;  // kPrepare
  std::string cluster;   // kCluster
  int64_t epoch = 0;     // kEpoch
};

struct NodeState {
  std::string cluster;        // Durable.
  int64_t leader_epoch = 0;   // Highest seen.
  int64_t durable_epoch = 0;  // Highest written.
  std::map<AttemptKey, Attempt> attempts;
  std::map<std::string, int> highest;  // Highest attempt of each job in `attempts`.

  int64_t session = 0;     // The newest session.
  std::string controller;  // Address of its controller, for messages.
  bool welcomed = false;   // The session's Welcome has arrived, which names the cluster.
  bool connected = false;  // The session is up and its controller is followed.
  bool adopting = false;   // Joins the cluster of the first Welcome.
  int64_t lease_epoch = 0;
  absl::Duration lease = absl::Seconds(5);
  absl::Duration heard_at;  // Time of the controller's last answer to a beat.
  int64_t beat = 0;
  absl::Duration beat_at;
  Op joining = 0;  // The write of the cluster's id; the Welcome waits for it.
  std::optional<v1::Welcome> welcome;
  Op raising = 0;  // The write of the leader's epoch; its commands wait for it.
  absl::Duration raise_by;
  std::deque<v1::ControllerMessage> held;

  std::string unusable;  // From the last StateFolderChecked.

  int shutdowns = 0;
  absl::Duration shutdown_at;
  bool exiting = false;
  absl::Duration exit_at = kNever;

  Op cleaning = 0;
  Op last_op = 0;
  std::map<Op, Pending> pending;

  // For the metrics page.
  int64_t sessions = 0;
  int64_t beats = 0;
  int64_t events = 0;
  int64_t shims_lost = 0;
  int64_t log_bytes_of_forgotten = 0;
  int64_t memory_kills_of_forgotten = 0;
};

// Decides what the worker daemon does, and does nothing itself. All inputs come through step(), which returns the
// effects, so the same inputs lead to the same state and effects. What must outlive the daemon comes back as
// RecoveredAttempt. A value: copies are independent.
class NodeCore {
 public:
  // `cluster` and `leader_epoch` are those of the state folder.
  NodeCore(NodeConfig config, std::string cluster, int64_t leader_epoch, Now now);

  // Handles one input and returns the effects for the daemon to carry out.
  std::vector<Effect> step(const Input& input, Now now);

  // Returns the monotonic time at which the next Tick is due.
  absl::Duration next_deadline() const;
  // Returns the message that opens a session, with an inventory of all attempts.
  v1::Register make_register(Now now) const;
  std::set<int> free_devices() const;
  int devices_held() const;  // Devices that attempts hold, including devices that the node no longer has.
  int running_ranks() const;
  int64_t log_bytes_dropped() const;
  int64_t memory_kills() const;  // Number of ranks that ran out of memory, over all attempts of this daemon's life.

  const NodeConfig& config() const { return config_; }
  const NodeState& state() const { return state_; }

 private:
  NodeConfig config_;
  NodeState state_;
};

}  // namespace titan::node
