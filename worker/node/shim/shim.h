#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "common/rank_protocol/beacon.h"
#include "nlohmann/json.hpp"
#include "worker/node/shim/control_group.h"
#include "worker/node/shim/exit_log.h"
#include "worker/node/shim/log_pump.h"
#include "worker/node/shim/rank_process.h"
#include "worker/node/shim/server.h"
#include "worker/node/shim/sockets.h"
#include "worker/node/shim/spec.h"

namespace titan::shim {

// Parent of one attempt's ranks on one node. Its files in the run folder:
//   spec.json, launch.json   read at the start
//   shim.lock                held while it lives: one shim per run folder
//   shim.json                who it is (pid, start ticks, boot), its state, the store's port, the ranks' pids
//   shim.sock                commands: status, subscribe, start, stop, checkpoint, lease
//   exits.jsonl              how each rank ended
//   rank-R.log[.START]       what each rank printed
// Answers and events are JSON lines: docs/worker-protocols.md, "Shim protocol".
class Shim {
 public:
  // `control`: a connected daemon, or an empty descriptor. Errors: AlreadyExists when another shim serves this folder;
  // else what failed (spec, port, disk).
  static absl::StatusOr<std::unique_ptr<Shim>> create(const std::string& run_folder, host::Descriptor control);

  // Serves until all ranks are gone and recorded. Call on the main thread of the process, with SIGCHLD and SIGTERM
  // blocked.
  void run();

 private:
  enum class State { kPrepared, kRunning, kEnded };
  struct Rank {
    int rank = 0;
    RankProcess process;
    bool running = false;
    bool unrecorded = false;  // The record of its end is not in exits.jsonl yet.
    std::unique_ptr<rank_protocol::RankExit> exit;
    std::unique_ptr<rank_protocol::BeaconReader> beacon;
    rank_protocol::Command wanted = rank_protocol::Command::kNone;  // Not written to its beacon yet.
  };

  Shim(std::string run_folder, Spec spec, host::Descriptor lock, Server server, ExitLog exits);
  static const char* name(State state);
  nlohmann::json answer(const nlohmann::json& request);
  nlohmann::json status() const;
  void save_state() const;

  nlohmann::json start(const std::string& store_host, int store_port);
  absl::Status start_one(Rank& rank, const std::string& store);
  void stop(bool save, int64_t grace_milliseconds, const std::string& reason);
  void kill_all(const std::string& reason);
  void order(rank_protocol::Command command);
  void write_commands();
  bool open_beacon(Rank& rank) const;

  // Where the threads of all ranks are: told as the event "stacks" once it is known, or at once when it was a moment
  // ago.
  nlohmann::json take_stacks(int64_t patience_milliseconds);
  void look_for_wishes();
  void look_for_kills();
  void end_stacks(int wait_status);

  void reap();
  void record_exit(Rank& rank, int wait_status);
  void retry_records();
  void kill_strays();
  void look_into_group(pid_t pid);
  bool any_running() const;
  bool commands_waiting() const;
  void check_deadlines();
  int wait_milliseconds() const;
  void end_if_over();

  // Where ranks write: nothing in it is to be trusted.
  const std::string& rank_folder() const { return spec_.rank_folder.empty() ? run_folder_ : spec_.rank_folder; }

  const std::string run_folder_;
  Spec spec_;
  host::Descriptor lock_;
  Server server_;
  ExitLog exits_;
  LogPump logs_;
  OutOfMemoryCounter oom_;
  int64_t oom_seen_ = 0;        // Kills for memory that are accounted for,
  int64_t oom_looked_ = 0;      // all of them at the last look,
  int64_t oom_changed_at_ = 0;  // and when they were fewer.
  bool killed_ = false;         // This shim has killed its ranks.
  host::Descriptor signals_;
  Listener store_;
  State state_ = State::kPrepared;
  std::vector<Rank> ranks_;
  std::string stop_reason_;
  int64_t kill_at_ = 0;    // Monotonic nanoseconds; 0: not planned.
  int64_t orphan_at_ = 0;  // Nobody renewed the lease until then.
  int64_t retry_at_ = 0;   // Unrecorded exits are tried again then.
  pid_t stacks_pid_ = 0;   // Of titan-stacks; 0: it does not run.
  int64_t stacks_at_ = 0;  // When it was last told where the ranks are; 0: never.
  int64_t wishes_at_ = 0;  // When the beacons are looked at again.
};

}  // namespace titan::shim
