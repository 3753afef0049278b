#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "common/base/sync/sync.h"

namespace titan::daemon {

// A thread that runs tasks in order, for file work that may be slow. A task must own everything it uses: it may hang in
// storage, and the destructor does not wait for it beyond `end_patience`.
class Lane {
 public:
  using Task = std::function<void()>;

  explicit Lane(std::chrono::milliseconds end_patience = std::chrono::seconds(2));
  ~Lane();  // Waits up to end_patience for queued tasks, then detaches the thread.
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

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

  const std::chrono::milliseconds end_patience_;
  const std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace titan::daemon
