#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/host/descriptor.h"
#include "common/base/sync/sync.h"

namespace titan::daemon {

// Event loop of the one thread that changes the daemon's state: readable descriptors, timers, and tasks from other
// threads. Only post() and the function that poster() returns may be called from other threads.
class Loop {
 public:
  using Task = std::function<void()>;
  using Timer = uint64_t;

  Loop();
  void run();  // Returns after stop().
  void stop() { stopped_ = true; }

  void post(Task task) { mailbox_->post(std::move(task)); }
  // A post() for threads that may outlive the loop. Tasks posted after its end never run.
  std::function<void(Task)> poster() const {
    return [mailbox = mailbox_](Task task) { mailbox->post(std::move(task)); };
  }
  void watch(int fd, Task on_readable);
  void unwatch(int fd);
  Timer after(absl::Duration delay, Task task);
  void cancel(Timer timer);

 private:
  struct Mailbox {
    Mailbox();
    void post(Task task);
    std::vector<Task> take();

    const host::Descriptor wake;
    sync::Mutex mutex;
    std::vector<Task> tasks TITAN_GUARDED_BY(mutex);
  };

  void run_posted();
  void run_timers();
  int wait_milliseconds() const;

  host::Descriptor epoll_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::map<int, std::shared_ptr<Task>> watched_;
  std::map<std::pair<int64_t, Timer>, Task> timers_;  // By monotonic deadline.
  std::map<Timer, int64_t> deadlines_;
  Timer next_timer_ = 1;
  bool stopped_ = false;
};

}  // namespace titan::daemon
