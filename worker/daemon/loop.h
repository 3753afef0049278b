#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/sync/sync.h"
#include "worker/shim/files.h"

namespace titan::daemon {

// One thread that does everything which changes the daemon's state: readable descriptors, timers, and tasks from other
// threads. Only post() may be called from another thread.
class Loop {
 public:
  using Task = std::function<void()>;
  using Timer = uint64_t;

  Loop();
  void run();  // Until stop().
  void stop() { stopped_ = true; }

  void post(Task task);
  void watch(int fd, Task on_readable);
  void unwatch(int fd);
  Timer after(absl::Duration delay, Task task);
  void cancel(Timer timer);

 private:
  void run_posted();
  void run_timers();
  int wait_milliseconds() const;

  shim::Descriptor epoll_;
  shim::Descriptor wake_;
  std::map<int, std::shared_ptr<Task>> watched_;
  std::map<std::pair<int64_t, Timer>, Task> timers_;  // By monotonic deadline.
  std::map<Timer, int64_t> deadlines_;
  Timer next_timer_ = 1;
  bool stopped_ = false;
  sync::Mutex mutex_;
  std::vector<Task> posted_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::daemon
