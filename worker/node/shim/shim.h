#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "nlohmann/json.hpp"
#include "worker/node/shim/exit_log.h"
#include "worker/node/shim/log_pump.h"
#include "worker/node/shim/memory_kills.h"
#include "worker/node/shim/ranks.h"
#include "worker/node/shim/reaping.h"
#include "worker/node/shim/server.h"
#include "worker/node/shim/sockets.h"
#include "worker/node/shim/spec.h"
#include "worker/node/shim/stacks_requests.h"
#include "worker/node/shim/stopping.h"

namespace titan::shim {

// Parent of one attempt's ranks on one node. Its files in the run folder:
//   spec.json, launch.json   read at the start
//   shim.lock                held while the shim lives: one shim per run folder
//   shim.json                the shim's identity (pid, start ticks, boot) and state, the store's port, the ranks' pids
//   shim.sock                commands: status, subscribe, start, stop, checkpoint, stacks, lease
//   exits.jsonl              how each rank ended
//   rank-R.log[.START]       the output of each rank
// Answers and events are JSON lines: docs/worker-protocols.md, "Shim protocol".
class Shim {
 public:
  // `control`: a connected daemon, or an empty descriptor. Errors: AlreadyExists when another shim serves this folder;
  // otherwise those of the spec, the port or the disk.
  static absl::StatusOr<std::unique_ptr<Shim>> create(const std::string& run_folder, host::Descriptor control);

  // Serves until all ranks are gone and recorded. Call it on the main thread of the process, with SIGCHLD and SIGTERM
  // blocked.
  void run();

 private:
  enum class State { kPrepared, kRunning, kEnded };

  Shim(const std::string& run_folder, Spec spec, host::Descriptor lock, Server server, ExitLog exits);
  static const char* name(State state);
  nlohmann::json answer(const nlohmann::json& request);
  nlohmann::json status() const;
  void save_state() const;

  nlohmann::json start(const std::string& store_host, int store_port);
  void stop(const StopOptions& options, const std::string& reason);
  StopOptions orphan_stop() const;

  void reap();
  void record_exit(Rank& rank, int wait_status);
  void check_deadlines();
  int wait_milliseconds() const;
  void end_if_over();

  Spec spec_;
  const Folders folders_;
  host::Descriptor lock_;
  Server server_;
  ExitRecords exits_;
  LogPump logs_;
  MemoryKills memory_kills_;
  host::Descriptor signals_;
  TcpListener store_;
  State state_ = State::kPrepared;
  std::vector<Rank> ranks_;
  Stopping stopping_;
  StacksRequests stacks_;
};

}  // namespace titan::shim
