#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "nlohmann/json.hpp"
#include "worker/node/daemon/loop.h"

namespace titan::daemon {

// The daemon's end of a shim's socket, on the loop thread.
class ShimLink {
 public:
  struct Callbacks {
    std::function<void(const nlohmann::json&)> on_message;
    std::function<void()> on_closed;  // The link may be destroyed in it.
  };

  ShimLink(Loop& loop, host::Descriptor socket, Callbacks callbacks);
  ~ShimLink();
  ShimLink(const ShimLink&) = delete;
  ShimLink& operator=(const ShimLink&) = delete;

  // The answer comes as a message with the same "id".
  void send(const nlohmann::json& request);

 private:
  void on_readable();

  Loop& loop_;
  host::Descriptor socket_;
  Callbacks callbacks_;
  std::string in_;
  std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);  // Set on destruction, also from within a callback.
};

// These two may be called on any thread.

// Starts a shim in a session of its own, so that it outlives this process; its first message is the event "ready".
// `environment`: all that it and its ranks get.
struct SpawnedShim {
  host::Descriptor socket;
  pid_t pid = 0;
};
absl::StatusOr<SpawnedShim> spawn_shim(const std::string& binary, const std::string& run_folder,
                                       std::vector<std::string> environment);
// Connects to a running shim; a link on it subscribes by the request of this name, and its answer comes first.
absl::StatusOr<host::Descriptor> connect_to_shim(const std::string& run_folder);
inline constexpr char kSubscribe[] = "subscribe";

// Does a living shim hold the lock of this run folder? Errors: the lock file cannot be opened although it is there.
absl::StatusOr<bool> shim_holds(const std::string& run_folder);

}  // namespace titan::daemon
