#pragma once

// Inputs and effects of the node's core.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock/now.h"
#include "common/service/journal/line.h"
#include "titan/v1/worker.pb.h"
#include "worker/node/core/attempt_record.h"
#include "worker/node/core/spool_tail.h"

namespace titan::node {

// Value of a deadline that is not set.
inline constexpr absl::Duration kNever = absl::InfiniteDuration();

// Converts a duration of a message. Clamped so that adding it to now fits the int64 nanoseconds of the daemon's timers.
inline absl::Duration duration_of(int64_t milliseconds) {
  constexpr int64_t kMost = int64_t{100} * 365 * 24 * 3600 * 1000;
  return absl::Milliseconds(std::clamp<int64_t>(milliseconds, 0, kMost));
}

// Number of an effect; its completion carries the same number. A core never uses a number again. 0: none.
using Op = uint64_t;

// A rank as described by its shim, which is its parent.
struct ReportedRank {
  int rank = 0;
  int64_t pid = 0;  // 0: never started.
  int64_t start_ticks = 0;
  bool running = false;
  std::optional<rank_protocol::RankExit> exit;
};

struct ShimStatus {
  int64_t pid = 0;
  int64_t start_ticks = 0;
  std::string boot;  // Boot id of the machine when the shim started.
  bool ended = false;
  int store_port = 0;
  std::vector<ReportedRank> ranks;
};

// Facts about an attempt from its launch file, for a controller that does not know the attempt.
struct LaunchFacts {
  std::string job;
  int64_t start_unix_nanos = 0;
  int threads_per_rank = 0;
  // All nodes of the attempt. Copies share the vector, because it may be long. Null: unknown.
  std::shared_ptr<const std::vector<v1::NodeRow>> nodes;
  int64_t committed_step = 0;  // Newest committed step of the job at launch. 0: none.
  std::string previous_end_cause;
  std::string previous_end_message;
};

// ---- Effects ----
// An effect with an `op` has a completion, which may come late, or never when storage hangs. Effects on the state
// folder are applied in the order in which they were issued. Effects on shared storage (PrepareFolder, DiscardPrepared,
// CheckToken) have no order. "-> X" names the completion.

// Sends on this session only. Dropped once another session is up, because its controller does not know the earlier
// messages.
struct Send {
  int64_t session = 0;
  v1::WorkerMessage message;
};
// Durably records this attempt number for the job, unless a higher one is recorded. -> FenceRaised
struct RaiseFence {
  Op op = 0;
  AttemptKey key;
};
// Creates the run folder with the record, after removing what an earlier try left there. -> Written
struct AddRecord {
  Op op = 0;
  AttemptRecord record;
};
// Replaces the record in the run folder. -> Written
struct WriteRecord {
  Op op = 0;
  AttemptRecord record;
};
// Creates the files of the run folder. On the leader also the dump folder, its id and the token. -> FolderPrepared
struct PrepareFolder {
  Op op = 0;
  AttemptRecord record;
  std::string launch_json;
};
// Undoes a preparation that finished after it was given up: removes its token and, with `strip`, what it wrote to the
// run folder.
struct DiscardPrepared {
  AttemptRecord record;
  bool strip = false;
};
// Checks whether the leader's token is in the dump folder. -> TokenChecked
struct CheckToken {
  Op op = 0;
  AttemptRecord record;
};
// Starts the shim and connects to it. -> ShimSpawned, then ShimEvent over the link
struct SpawnShim {
  Op op = 0;
  AttemptKey key;
};
// Looks for a shim and connects to it. -> ShimLookup
struct FindShim {
  Op op = 0;
  AttemptKey key;
};
// Checks which processes are alive. With `kill_left` (the shim is gone) first kills processes whose environment names
// the run folder and those in the attempt's control group. -> RanksChecked
struct CheckRanks {
  Op op = 0;
  AttemptKey key;
  std::string boot;
  std::vector<ReportedRank> ranks;
  bool kill_left = false;
};
struct KillShim {
  AttemptKey key;
  int64_t pid = 0;
  int64_t start_ticks = 0;
};
struct ShimCommand {
  enum class Kind { kStart, kStop, kCheckpoint, kLease, kStacks };
  Kind kind = Kind::kLease;
  std::string store_host;  // kStart
  int store_port = 0;
  bool save = false;  // kStop
  int64_t grace_milliseconds = 0;
  std::string reason;
  int64_t silence_milliseconds = 0;  // kLease: time since the last message of the controller.
  int64_t timeout_milliseconds = 0;  // kStacks: stacks that are not read by then are left out.
};
struct SendToShim {
  AttemptKey key;
  Op link = 0;
  ShimCommand command;
};
// Reads a rank's events from `offset`. -> SpoolRead
struct ReadSpool {
  Op op = 0;
  AttemptKey key;
  int rank = 0;
  int64_t offset = 0;
  int64_t max_bytes = 0;
};
// Reads the end of the log of a rank that has ended, for the controller. -> LogTailRead
struct ReadLogTail {
  Op op = 0;
  AttemptKey key;
  int rank = 0;
};
// Requests SpoolChanged for these ranks from now on.
struct WatchSpools {
  AttemptKey key;
  std::vector<int> ranks;
};
struct UnwatchSpools {
  AttemptKey key;
  std::vector<int> ranks;
};
// Saves the positions up to which the controller has acknowledged the ranks' events. -> Written
struct WritePlaces {
  Op op = 0;
  AttemptKey key;
  std::map<int, SpoolTail::Place> places;
};
// Writes the record, which is marked as forgotten, and deletes the files that only a live attempt needs. -> Written
struct ForgetAttempt {
  Op op = 0;
  AttemptRecord record;
};
struct DeleteFolder {
  AttemptKey key;
};
// Deletes run folders of forgotten attempts that are too old or take too much disk space. -> Written
struct CleanUp {
  Op op = 0;
};
// Writes durably. -> Written
struct WriteCluster {
  Op op = 0;
  std::string cluster;
};
// Writes durably. -> Written
struct WriteLeaderEpoch {
  Op op = 0;
  int64_t epoch = 0;
};
// Reads a log and sends the answer. `closed`: the rank will never print more than what can be read now.
struct AnswerLog {
  int64_t session = 0;
  v1::ReadLog request;
  bool closed = false;
};
struct AnswerTrace {
  int64_t session = 0;
  v1::ReadTrace request;
  bool known = false;  // The attempt is known and not forgotten.
  bool gone = false;   // The rank has ended or does not belong to this node.
};
// Reads the pages that the ranks left for diagnosis and sends one answer per rank.
struct AnswerDiagnosis {
  int64_t session = 0;
  v1::Diagnose request;
  struct Rank {
    v1::RankStatus status;
    bool alive = false;
  };
  std::vector<Rank> ranks;     // Empty: this node does not know the attempt.
  std::string stacks_missing;  // Why the stacks are missing. Empty: they are not.
};
// Closes the session, so that the daemon opens a new one.
struct ResetSession {
  int64_t session = 0;
  std::string why;
};
struct Log {
  journal::Line line;
};
struct Exit {};

using Effect = std::variant<Send, RaiseFence, AddRecord, WriteRecord, PrepareFolder, DiscardPrepared, CheckToken,
                            SpawnShim, FindShim, CheckRanks, KillShim, SendToShim, ReadSpool, ReadLogTail, WatchSpools,
                            UnwatchSpools, WritePlaces, ForgetAttempt, DeleteFolder, CleanUp, WriteCluster,
                            WriteLeaderEpoch, AnswerLog, AnswerTrace, AnswerDiagnosis, ResetSession, Log, Exit>;

// ---- Inputs ----

// Comes at startup, before any other input: an attempt whose record is in the state folder and is not marked as
// forgotten.
struct RecoveredAttempt {
  AttemptRecord record;
  std::map<int, SpoolTail::Place> places;
  LaunchFacts facts;
  enum class Shim { kUnknown, kAlive, kGone };
  Shim shim = Shim::kUnknown;  // kUnknown: it cannot be determined from the disk.
  // Last status that the shim wrote. None: no shim ever started, or the status is unreadable.
  std::optional<ShimStatus> status;
  std::vector<rank_protocol::RankExit> exits;  // Exits that the shim recorded.
  std::vector<std::string> damage;             // Damage in files of the run folder, one sentence per file, for people.
  std::string exits_damage;                    // See RanksChecked::exits_damage.
};
// A message of the controller. Sessions are numbered from 1. Messages that arrive before the session's Welcome wait for
// it.
struct Command {
  int64_t session = 0;
  v1::ControllerMessage message;
  std::string controller;  // Its address, for log messages.
};
// Also sent for a connection that never became a session.
struct Disconnected {
  int64_t session = 0;  // 0: none.
  std::string reason;   // UPPER_SNAKE, set by the controller.
};
struct FenceRaised {
  Op op = 0;
  int highest = 0;  // Highest attempt of the job on this node, including this one.
  std::string error;
  std::string damage = {};     // Damage of the fence, which has been repaired. Empty: none.
  bool is_unreadable = false;  // The error concerns this job's fence, not the state folder.
};
struct Written {
  Op op = 0;
  std::string error;  // Empty: it was written.
};
struct FolderPrepared {
  Op op = 0;
  Refusal refusal;
  std::string folder_id;
  LaunchFacts facts;
};
struct TokenChecked {
  Op op = 0;
  Refusal refusal;
};
struct ShimSpawned {
  Op op = 0;  // Also the number of the link.
  int64_t pid = 0;
  int64_t start_ticks = 0;
  std::string error;
};
struct ShimLookup {
  Op op = 0;  // Also the number of the link when the result is kLinked.
  enum class State { kLinked, kSilent, kGone, kUnknown };
  State state = State::kUnknown;
  std::string why;                             // kUnknown: the error. kGone: the last line that the shim printed.
  std::optional<ShimStatus> status;            // kGone: its last status, if it wrote one.
  std::vector<rank_protocol::RankExit> exits;  // kGone: the exits that it recorded.
};
struct RanksChecked {
  Op op = 0;
  struct Alive {
    int rank = 0;
    int64_t pid = 0;
    char state = 0;  // State letter of /proc/PID/stat. D: waits in the kernel, so no signal ends it.
  };
  std::vector<Alive> alive;
  std::string unknown;  // Why the state of some ranks is unknown. Empty: all are known.
  bool same_boot = true;
  std::vector<rank_protocol::RankExit> exits;  // Exits that the shim recorded.
  std::string exits_unknown;                   // Why the exits cannot be read.
  std::string exits_damage;                    // Which part of their file was skipped, for people. Empty: none.
  std::map<int, std::string> last_words;       // Last output of ranks without an exit record.
};
struct SpoolDamage {
  int64_t offset = 0;
  std::string message;  // For people.
};
struct SpoolRead {
  Op op = 0;
  std::vector<SpoolEvent> lines;
  int64_t next_offset = 0;
  std::string error;                // Why the file cannot be read now. A file that does not exist yet is not an error.
  std::vector<SpoolDamage> damage;  // Skipped parts, by offset.
  bool was_cut = false;             // The file is shorter than before and was read again from its start.
};
struct LogTailRead {
  Op op = 0;
  std::string text;    // Valid UTF-8. Empty: the log is missing or cannot be read.
  int64_t offset = 0;  // Offset of its first byte in the log.
};
struct SpoolChanged {
  AttemptKey key;
  int rank = 0;
};
struct ShimEvent {
  AttemptKey key;
  Op link = 0;
  enum class Kind { kStatus, kStarted, kStartFailed, kExit, kEnded, kLease, kStacks };
  Kind kind = Kind::kStatus;
  ShimStatus status;              // kStatus, kStarted, kEnded
  rank_protocol::RankExit exit;   // kExit
  std::string error;              // kStartFailed, kStacks
  int64_t log_bytes_dropped = 0;  // kLease
};
struct ShimClosed {
  AttemptKey key;
  Op link = 0;
};
struct BeaconsRead {
  struct Item {
    AttemptKey key;
    v1::RankStatus status;       // Without pid, start_ticks and phase_milliseconds.
    absl::Duration phase_since;  // Monotonic.
  };
  std::vector<Item> items;
};
// Why no rank can be prepared here: the state folder is gone, was replaced, is full or cannot be written. Empty: ranks
// can be prepared.
struct StateFolderChecked {
  std::string unusable;
};
struct Tick {};
// A signal asked the daemon to stop.
struct Shutdown {
  bool immediate = false;  // Ctrl-C at a terminal: the second one kills the ranks.
};

using Input = std::variant<RecoveredAttempt, Command, Disconnected, FenceRaised, Written, FolderPrepared, TokenChecked,
                           ShimSpawned, ShimLookup, RanksChecked, SpoolRead, LogTailRead, SpoolChanged, ShimEvent,
                           ShimClosed, BeaconsRead, StateFolderChecked, Tick, Shutdown>;

}  // namespace titan::node
