#pragma once

// What goes into the node's core and what comes out of it.

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

// A deadline that is not set.
inline constexpr absl::Duration kNever = absl::InfiniteDuration();

// Of a message: clamped so that now plus it still fits the 64 bits of nanoseconds that the daemon's timers count.
inline absl::Duration duration_of(int64_t milliseconds) {
  constexpr int64_t kMost = int64_t{100} * 365 * 24 * 3600 * 1000;
  return absl::Milliseconds(std::clamp<int64_t>(milliseconds, 0, kMost));
}

// Number of an effect whose completion comes back with it; never used again in the life of a core. 0: none.
using Op = uint64_t;

// A rank as its shim, its parent, describes it.
struct RankProcess {
  int rank = 0;
  int64_t pid = 0;  // 0: never started.
  int64_t start_ticks = 0;
  bool running = false;
  std::optional<rank_protocol::RankExit> exit;
};

struct ShimStatus {
  int64_t pid = 0;
  int64_t start_ticks = 0;
  std::string boot;  // Of the machine that the shim began in.
  bool ended = false;
  int store_port = 0;
  std::vector<RankProcess> ranks;
};

// What a launch file says of an attempt, for a controller that does not know it.
struct LaunchFacts {
  std::string job;
  int64_t start_unix_nanos = 0;
  int threads_per_rank = 0;
  // All its nodes. Copies share it: names that cannot be told together are many. Null: none are known.
  std::shared_ptr<const std::vector<v1::NodeRow>> nodes;
  int64_t committed_step = 0;  // Newest one of the job when it was launched; 0: none.
  std::string previous_end_cause;
  std::string previous_end_message;
};

// ---- Effects ----
// Those with an op have a completion, which may come late, or never when storage hangs. Effects on the state folder are
// applied in the order in which they were given out; shared storage (PrepareFolder, DiscardPrepared, CheckToken) knows
// no order.

// On this session; nothing once another one is up, whose controller would not know what came before.
struct Send {
  int64_t session = 0;
  v1::WorkerMessage message;
};
// Durably notes that this attempt of the job was here, unless a newer one was. -> FenceRaised
struct RaiseFence {
  Op op = 0;
  AttemptKey key;
};
// Makes the run folder, emptied of an earlier try, with the record. -> Written
struct AddRecord {
  Op op = 0;
  AttemptRecord record;
};
// -> Written
struct WriteRecord {
  Op op = 0;
  AttemptRecord record;
};
// The files of the run folder; on the leader the dump folder, its id and the token. -> FolderPrepared
struct PrepareFolder {
  Op op = 0;
  AttemptRecord record;
  std::string launch_json;
};
// A preparation was done after nobody wanted it: its token must not stay; `strip`: nor what it wrote to the run folder.
struct DiscardPrepared {
  AttemptRecord record;
  bool strip = false;
};
// Is the leader's token in the dump folder? -> TokenChecked
struct CheckToken {
  Op op = 0;
  AttemptRecord record;
};
// Starts the shim with a link to it. -> ShimSpawned, then ShimSaid over the link
struct SpawnShim {
  Op op = 0;
  AttemptKey key;
};
// Is there a shim, and does it take a link? -> ShimFound
struct FindShim {
  Op op = 0;
  AttemptKey key;
};
// Looks at the processes; `kill_left`: those that name the run folder and have no parent of ours are killed first.
// -> RanksSeen
struct CheckRanks {
  Op op = 0;
  AttemptKey key;
  std::string boot;
  std::vector<RankProcess> ranks;
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
  int64_t silence_milliseconds = 0;   // kLease: since the controller was last heard.
  int64_t patience_milliseconds = 0;  // kStacks: what is not read by then is left out.
};
struct TellShim {
  AttemptKey key;
  Op link = 0;
  ShimCommand command;
};
// -> SpoolRead
struct ReadSpool {
  Op op = 0;
  AttemptKey key;
  int rank = 0;
  int64_t offset = 0;
  int64_t max_bytes = 0;
};
// The end of the log of a rank that is gone, as the controller may keep it. -> LogTailRead
struct ReadLogTail {
  Op op = 0;
  AttemptKey key;
  int rank = 0;
};
// From now on SpoolChanged is wanted.
struct WatchSpools {
  AttemptKey key;
  std::vector<int> ranks;
};
struct UnwatchSpools {
  AttemptKey key;
  std::vector<int> ranks;
};
// What the controller has of each rank's events. -> Written
struct WritePlaces {
  Op op = 0;
  AttemptKey key;
  std::map<int, SpoolTail::Place> places;
};
// Writes the record, which says forgotten, and deletes what only a live attempt needs. -> Written
struct ForgetAttempt {
  Op op = 0;
  AttemptRecord record;
};
struct DeleteFolder {
  AttemptKey key;
};
// Deletes run folders of forgotten attempts that are old or take too much room. -> Written
struct CleanUp {
  Op op = 0;
};
// Durably. -> Written
struct WriteCluster {
  Op op = 0;
  std::string cluster;
};
// Durably. -> Written
struct WriteLeaderEpoch {
  Op op = 0;
  int64_t epoch = 0;
};
// Reads a log and sends the answer. `closed`: what can be read is all that the rank will ever have printed.
struct AnswerLog {
  int64_t session = 0;
  v1::ReadLog request;
  bool closed = false;
};
struct AnswerTrace {
  int64_t session = 0;
  v1::ReadTrace request;
  bool known = false;  // The attempt, and not forgotten.
  bool gone = false;   // The rank has ended or is not of this node.
};
// Reads what the ranks have left of what they did and sends one answer a rank.
struct AnswerDiagnosis {
  int64_t session = 0;
  v1::Diagnose request;
  struct Rank {
    v1::RankStatus status;
    bool alive = false;
  };
  std::vector<Rank> ranks;     // None: of no attempt that this node knows.
  std::string stacks_missing;  // Why there are none.
};
// Gives the session up, so that a new one is tried.
struct ResetSession {
  int64_t session = 0;
  std::string why;
};
struct Log {
  journal::Line line;
};
struct Exit {};

using Effect = std::variant<Send, RaiseFence, AddRecord, WriteRecord, PrepareFolder, DiscardPrepared, CheckToken,
                            SpawnShim, FindShim, CheckRanks, KillShim, TellShim, ReadSpool, ReadLogTail, WatchSpools,
                            UnwatchSpools, WritePlaces, ForgetAttempt, DeleteFolder, CleanUp, WriteCluster,
                            WriteLeaderEpoch, AnswerLog, AnswerTrace, AnswerDiagnosis, ResetSession, Log, Exit>;

// ---- Inputs ----

// At the start, before anything else: an attempt whose record lies in the state folder and does not say forgotten.
struct Found {
  AttemptRecord record;
  std::map<int, SpoolTail::Place> places;
  LaunchFacts facts;
  enum class Shim { kUnknown, kAlive, kGone };
  Shim shim = Shim::kUnknown;        // kUnknown: the disk does not say.
  std::optional<ShimStatus> status;  // What a shim wrote last; none: no shim ever began, or it cannot be read.
  std::vector<rank_protocol::RankExit> exits;  // Those recorded by the shim.
  std::vector<std::string> damage;             // Of files of its run folder, in words, one of each.
  std::string exits_damage;                    // As RanksSeen has it.
};
// Of the controller. Sessions are numbered from 1; what comes before the Welcome of one waits for it.
struct Command {
  int64_t session = 0;
  v1::ControllerMessage message;
  std::string controller;  // Its address, for messages.
};
// Also of a try that never became a session.
struct Disconnected {
  int64_t session = 0;  // 0: none.
  std::string reason;   // UPPER_SNAKE, the controller's own.
};
struct FenceRaised {
  Op op = 0;
  int highest = 0;  // Of the job on this node, this attempt included.
  std::string error;
  std::string damage = {};     // The fence was damaged and is whole again: what was wrong with it.
  bool is_unreadable = false;  // The error is of this job's fence, not of the state folder.
};
struct Written {
  Op op = 0;
  std::string error;  // Empty: it is there.
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
struct ShimFound {
  Op op = 0;  // Also the number of the link when it is kLinked.
  enum class Is { kLinked, kSilent, kGone, kUnknown };
  Is is = Is::kUnknown;
  std::string why;                             // kUnknown: the error. kGone: the last line that the shim printed.
  std::optional<ShimStatus> status;            // kGone: its last, when it ever wrote one.
  std::vector<rank_protocol::RankExit> exits;  // kGone: those recorded.
};
struct RanksSeen {
  Op op = 0;
  struct Alive {
    int rank = 0;
    int64_t pid = 0;
    char state = 0;  // Of /proc/PID/stat: D waits in the kernel, and no signal ends it.
  };
  std::vector<Alive> alive;
  std::string unknown;  // Why it cannot be told of all.
  bool same_boot = true;
  std::vector<rank_protocol::RankExit> exits;  // Recorded by the shim.
  std::string exits_unknown;                   // Why they cannot be read.
  std::string exits_damage;                    // What of their file was skipped, in words; empty: nothing.
  std::map<int, std::string> last_words;       // Of ranks without a record.
};
struct SpoolDamage {
  int64_t offset = 0;
  std::string message;  // For people.
};
struct SpoolRead {
  Op op = 0;
  std::vector<SpoolLine> lines;
  int64_t next_offset = 0;
  std::string error;                // It cannot be read now; no file yet is no error.
  std::vector<SpoolDamage> damage;  // Skipped, by offset.
  bool was_cut = false;             // The file is shorter than it was, and was read from its start.
};
struct LogTailRead {
  Op op = 0;
  std::string text;    // Valid UTF-8. Empty: there is none, or it cannot be read.
  int64_t offset = 0;  // Of its first byte.
};
struct SpoolChanged {
  AttemptKey key;
  int rank = 0;
};
struct ShimSaid {
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
struct BeaconsSeen {
  struct Item {
    AttemptKey key;
    v1::RankStatus status;       // Without the process and phase_milliseconds.
    absl::Duration phase_since;  // Monotonic.
  };
  std::vector<Item> items;
};
// Why no rank can be prepared here: the state folder is gone, was replaced, is full or cannot be written. Empty: one
// can.
struct StateFolderSeen {
  std::string unusable;
};
struct Tick {};
// A signal.
struct Shutdown {
  bool hurries = false;  // Somebody at a terminal, whose second one kills.
};

using Input = std::variant<Found, Command, Disconnected, FenceRaised, Written, FolderPrepared, TokenChecked,
                           ShimSpawned, ShimFound, RanksSeen, SpoolRead, LogTailRead, SpoolChanged, ShimSaid,
                           ShimClosed, BeaconsSeen, StateFolderSeen, Tick, Shutdown>;

}  // namespace titan::node
