#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "common/base/sync/sync.h"

namespace titan::daemon {

// A thread that runs tasks in order, for file work that may be slow. A task must own everything it uses: it may hang in
// storage, and the destructor does not wait for it beyond `shutdown_timeout`.
class SerialExecutor {
 public:
  using Task = std::function<void()>;

  explicit SerialExecutor(std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(2));
  ~SerialExecutor();  // Waits up to shutdown_timeout for queued tasks, then detaches the thread.
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  void run(Task task);

 private:
  struct Queue {
    sync::Mutex mutex;
    sync::Condition changed;
    std::deque<Task> tasks TITAN_GUARDED_BY(mutex);
    bool closed TITAN_GUARDED_BY(mutex) = false;
    bool done TITAN_GUARDED_BY(mutex) = false;
  };
  static void work(const std::shared_ptr<Queue>& queue);

  const std::chrono::milliseconds shutdown_timeout_;
  const std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace titan::daemon
