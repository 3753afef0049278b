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

// The daemon's end of a shim's socket. Use it on the loop thread only.
class ShimLink {
 public:
  struct Callbacks {
    std::function<void(const nlohmann::json&)> on_message;
    std::function<void()> on_closed;  // May destroy the link.
  };

  ShimLink(Loop& loop, host::Descriptor socket, Callbacks callbacks);
  ~ShimLink();
  ShimLink(const ShimLink&) = delete;
  ShimLink& operator=(const ShimLink&) = delete;

  // Sends a request. The answer arrives as a message with the same "id".
  void send(const nlohmann::json& request);

 private:
  void on_readable();

  Loop& loop_;
  host::Descriptor socket_;
  Callbacks callbacks_;
  std::string in_;
  std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);  // Set by the destructor, which a callback may run.
};

// The functions below may be called on any thread.

// A shim that was started in its own Unix session, so that it outlives this process. Its first message is the event
// "ready". `environment`: the complete environment of the shim and its ranks.
struct SpawnedShim {
  host::Descriptor socket;
  pid_t pid = 0;
};
absl::StatusOr<SpawnedShim> spawn_shim(const std::string& binary, const std::string& run_folder,
                                       std::vector<std::string> environment);
// Connects to a running shim. The link subscribes with the request of this name, and the answer to it comes first.
absl::StatusOr<host::Descriptor> connect_to_shim(const std::string& run_folder);
inline constexpr char kSubscribe[] = "subscribe";

// Returns whether a living shim holds the lock of this run folder. Errors: the lock file exists but cannot be opened.
absl::StatusOr<bool> shim_holds(const std::string& run_folder);

}  // namespace titan::daemon
