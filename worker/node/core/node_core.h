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

// What does not change while the daemon lives.
struct NodeConfig {
  std::string node;
  std::string address;
  std::string version;
  std::string instance;
  std::string boot_id;  // Of the machine; monotonic time counts from there.
  v1::NodeResources resources;
  std::map<std::string, std::string> labels;
  bool adopt_cluster = false;
  bool stop_ranks_on_exit = false;
  absl::Duration stop_grace = absl::Seconds(30);
  absl::Duration token_patience = absl::Seconds(5);  // Shared storage may show the token late.
};

// How long the node waits before it says that something takes too long.
inline constexpr absl::Duration kBeatInterval = absl::Seconds(1);  // At most,
inline constexpr int64_t kBeatsPerLease = 5;  // and as many as the controller expects within a short lease.
inline constexpr absl::Duration kShortestBeat = absl::Milliseconds(20);  // However short a lease a controller says.
inline constexpr absl::Duration kPreparePatience = absl::Seconds(60);  // A lock on shared storage alone may take 30 s.
inline constexpr absl::Duration kStartPatience = absl::Seconds(30);    // Beyond the token's.
// After the grace: a shim that hangs cannot end its ranks.
inline constexpr absl::Duration kShimPatience = absl::Seconds(3);
inline constexpr absl::Duration kStopPatience = absl::Seconds(10);  // After the grace: ranks that cannot be killed.
inline constexpr absl::Duration kWritePatience = absl::Seconds(5);  // A record that is not written by then.
inline constexpr absl::Duration kSpoolPatience = absl::Seconds(1);  // For events that come before a report.
// For the stacks of all ranks, unless the controller says less.
inline constexpr absl::Duration kStacksPatience = absl::Seconds(5);
inline constexpr absl::Duration kExitsPatience = absl::Seconds(10);  // For exit records that cannot be read.
inline constexpr size_t kMostLatePreparations = 16;                  // Each holds a thread that hangs.

enum class Stage {
  kFencing,    // Its number is being noted.
  kWaiting,    // For older attempts of its job to be gone, or for devices of attempts that are being stopped.
  kRecording,  // The record is being made.
  kPreparing,  // The folders are being made.
  kSpawning,   // The shim has not said yet that it is there.
  kSaving,     // The record of a live attempt is being written; then PREPARED is said.
  kLive,
  kFinishing,  // The record of its end is being written; then the end is said.
  kOver,
  kForgetting,
};

// Where an attempt's shim is.
enum class Shim {
  kNone,      // Never spawned.
  kSpawning,  // No link yet.
  kLinked,
  kLost,  // No link, and it may live.
  kGone,  // And its ranks with it.
};

struct Rank {
  int rank = 0;
  int64_t pid = 0;
  int64_t start_ticks = 0;
  bool running = false;
  std::optional<rank_protocol::RankExit> exit;
  bool exit_unsaid = false;
  SpoolTail tail;
  Op reading = 0;
  bool more = true;          // Events may be there that were not read.
  std::string unread;        // Why its events cannot be read, as it was said last.
  bool named = false;        // By the attempt's verdict.
  bool tail_wanted = false;  // The end of its log is for the controller,
  Op reading_tail = 0;       // and being read.
  std::string log_tail;
  int64_t log_offset = 0;
  bool tail_said = false;  // In this session.
  std::optional<v1::RankStatus> beacon;
  absl::Duration phase_since;
};

struct Attempt {
  AttemptRecord record;
  Stage stage = Stage::kFencing;
  Op op = 0;  // What the stage waits for.
  std::vector<Rank> ranks;
  LaunchFacts facts;
  std::optional<int64_t> resumed_step;  // As its ranks have said; unknown to a daemon that began after that.
  std::string launch_json;              // Until it is prepared.
  std::vector<int> asked_devices;       // One for each rank, as the controller says; empty: any.
  absl::Duration prepare_by = kNever;   // kNever: answered.

  Shim shim = Shim::kNone;
  Op link = 0;  // Of kSpawning and kLinked.
  int64_t shim_pid = 0;
  int64_t shim_ticks = 0;
  std::string boot;
  absl::Duration shim_heard;
  Op finding = 0;
  absl::Duration find_at = kNever;
  int looks = 0;
  std::string unknown;               // Why it cannot be told whether the shim or the ranks live, as it was said last.
  std::vector<ShimCommand> pending;  // For the shim, until there is a link to it.

  bool was_live = false;             // PREPARED was said, or the record says so.
  bool started = false;              // The shim has started the ranks.
  std::optional<ShimCommand> start;  // Wanted, until started.
  Op checking_token = 0;
  bool token_seen = false;
  absl::Duration start_by = kNever;
  int store_port = 0;

  enum class End { kNo, kEnded, kShimLost };
  End end = End::kNo;  // The shim is done: ended when no rank is left.
  Op checking = 0;
  absl::Duration check_at = kNever;
  absl::Duration exits_by;
  std::string exits_damage;  // As it was told.

  bool stopping = false;
  absl::Duration kill_shim_at = kNever;
  absl::Duration stop_overdue_at = kNever;
  bool overdue = false;  // STOP_TIMEOUT, with the text below, until it is over.
  std::string overdue_message;
  absl::Duration overdue_said_by = kNever;
  absl::Duration stop_asked_at;
  bool forget = false;                       // Once it is over.
  std::vector<v1::ControllerMessage> after;  // Commands that came while it was being forgotten: obeyed after that.

  // Asked what its ranks do; by whose session, and until when their stacks are waited for.
  std::optional<v1::Diagnose> diagnose;
  int64_t diagnose_session = 0;
  absl::Duration diagnose_by = kNever;

  absl::Duration report_by = kNever;  // A report of everything is wanted, after the events.
  absl::Duration exits_said_by = kNever;
  Op writing_places = 0;
  bool places_changed = false;
  Op writing_again = 0;  // Of a record that could not be written at the end.
  absl::Duration write_again_at = kNever;
  absl::Duration finish_by = kNever;
  int64_t log_bytes_dropped = 0;

  int memory_kills() const;  // Its ranks here that ran out of memory.
  bool over() const { return stage >= Stage::kOver; }
  bool ending() const { return stage >= Stage::kFinishing; }
  bool announced() const;  // The controller may know it from this node.
  bool shim_may_live() const { return shim != Shim::kNone && shim != Shim::kGone; }
  bool holds_devices() const;
};

// Of an effect that is under way.
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
  std::map<std::string, int> highest;  // Attempts by job, of those above.

  int64_t session = 0;     // The last one that began,
  std::string controller;  // and with whom; for messages.
  bool welcomed = false;   // It has had its welcome, which says whose controller speaks.
  bool connected = false;  // It stands, and its controller is followed.
  bool adopting = false;   // Until the first welcome.
  int64_t lease_epoch = 0;
  absl::Duration lease = absl::Seconds(5);
  absl::Duration heard_at;  // The controller's last answer to a beat.
  int64_t beat = 0;
  absl::Duration beat_at;
  Op joining = 0;  // The cluster's id is being written: the welcome waits.
  std::optional<v1::Welcome> welcome;
  Op raising = 0;  // A leader's epoch is being written: its commands wait.
  absl::Duration raise_by;
  std::deque<v1::ControllerMessage> held;

  std::string unusable;  // As StateFolderSeen said last.

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

// The rules of a node: what a worker daemon does when it hears something, without doing it. Everything comes in by
// step() and goes out as its effects, so the same inputs give the same node; what must outlive the daemon comes back
// with Found. A value: copies are independent.
class NodeCore {
 public:
  // `cluster` and `leader_epoch`: as they lie in the state folder.
  NodeCore(NodeConfig config, std::string cluster, int64_t leader_epoch, Now now);

  std::vector<Effect> step(const Input& input, Now now);

  // Tick is wanted then. Monotonic.
  absl::Duration next_deadline() const;
  v1::Register make_register(Now now) const;
  std::set<int> free_devices() const;
  int devices_held() const;  // By attempts; more than there are, if there were more when they began.
  int running_ranks() const;
  int64_t log_bytes_dropped() const;
  int64_t memory_kills() const;  // Ranks that ran out of memory, of all attempts of this daemon's life.

  const NodeConfig& config() const { return config_; }
  const NodeState& state() const { return state_; }

 private:
  NodeConfig config_;
  NodeState state_;
};

}  // namespace titan::node
