#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"

namespace titan::cli {

// A child process that dies with this one and does not receive the terminal's Ctrl-C.
class Child {
 public:
  // Output goes to `log_path`. `on_exit(text)` runs on another thread when the process ends before stop().
  static absl::StatusOr<std::unique_ptr<Child>> start(const std::vector<std::string>& command,
                                                      const std::string& log_path,
                                                      std::function<void(const std::string&)> on_exit);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Sends SIGTERM and, after `grace`, SIGKILL; waits for the end.
  void stop(absl::Duration grace);
  bool ended() const;

 private:
  Child(pid_t pid, std::string name, std::function<void(const std::string&)> on_exit);
  void reap();

  const pid_t pid_;
  const std::string name_;
  std::function<void(const std::string&)> on_exit_;
  mutable sync::Mutex mutex_;
  sync::Condition changed_;
  bool stopping_ TITAN_GUARDED_BY(mutex_) = false;
  bool ended_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread reaper_;
};

// A real controller and a real worker for one command, on free loopback ports, with their state in a private folder.
class LocalCluster {
 public:
  struct Options {
    std::string folder;  // State and daemon logs; must exist.
    std::string device = "cpu";
    int devices = 1;  // CPU ranks that the node can run; the worker finds other devices itself.
    std::function<void(const std::string&)>
        on_failure;  // Called when a daemon ends on its own; the text names its log.
  };

  // The worker gives its ranks 30 s to save when something other than the job's end stops them.
  static constexpr absl::Duration kGrace = absl::Seconds(35);

  static absl::StatusOr<std::unique_ptr<LocalCluster>> start(const Options& options);
  ~LocalCluster() { stop(kGrace); }
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  const std::string& controller() const { return controller_address_; }
  // Stops the ranks first (through their worker), then the controller.
  void stop(absl::Duration grace);

 private:
  LocalCluster() = default;

  std::string controller_address_;
  std::unique_ptr<Child> controller_;
  std::unique_ptr<Child> worker_;
};

}  // namespace titan::cli
