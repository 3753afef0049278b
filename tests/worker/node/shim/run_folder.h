#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/host/descriptor.h"
#include "nlohmann/json.hpp"
#include "worker/node/shim/exit_log.h"
#include "worker/node/shim/spec.h"

namespace titan::shim {

// Paths of the built programs.
std::string shim_binary();
std::string worker_binary();
std::string fake_rank_binary();

// Returns a launch file of `world` ranks on one node, with this "fake" member in its config (see fake_rank.cc).
nlohmann::json fake_launch(int world, const nlohmann::json& fake, int attempt = 1);

// Calls `done` until it is true; returns false after 20 seconds.
bool eventually(const std::function<bool()>& done);

// A run folder with spec and launch file, and the shim that serves it. The destructor kills the shim.
class RunFolder {
 public:
  RunFolder(int ranks, const nlohmann::json& fake, Spec changes = {});
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  void start_shim();
  pid_t shim_pid() const { return shim_; }
  // Waits for the shim's end and returns its wait status.
  int wait_for_shim();
  void kill_shim(int signal);

  std::vector<rank_protocol::RankExit> exits() const;
  std::vector<nlohmann::json> events(int rank, const std::string& kind = "") const;  // Events of one kind, or all.
  // Waits for the first event of this kind and returns it.
  nlohmann::json wait_for_event(int rank, const std::string& kind) const;

 private:
  std::string path_;
  pid_t shim_ = 0;
};

// A client of shim.sock that waits for answers.
class Client {
 public:
  explicit Client(const std::string& run_folder);
  nlohmann::json ask(nlohmann::json request);  // Returns the answer; events that arrive before it are kept.
  nlohmann::json next_event();                 // Null if the shim closed the socket or 20 seconds have passed.

 private:
  nlohmann::json read_message();
  host::Descriptor socket_;
  std::string in_;
  std::vector<nlohmann::json> events_;
  int64_t next_id_ = 1;
};

}  // namespace titan::shim
