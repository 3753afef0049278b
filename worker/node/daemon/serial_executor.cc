#include "worker/node/daemon/serial_executor.h"

#include <utility>

namespace titan::daemon {

SerialExecutor::SerialExecutor(std::chrono::milliseconds shutdown_timeout)
    : shutdown_timeout_(shutdown_timeout),
      queue_(std::make_shared<Queue>()),
      thread_([queue = queue_] { work(queue); }) {}

SerialExecutor::~SerialExecutor() {
  bool done = false;
  {
    std::unique_lock lock(queue_->mutex);
    queue_->closed = true;
    queue_->changed.notify_all();
    done = queue_->changed.wait_for(lock, shutdown_timeout_, [this] { return queue_->done; });
  }
  if (done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void SerialExecutor::run(Task task) {
  {
    sync::Lock lock(queue_->mutex);
    queue_->tasks.push_back(std::move(task));
  }
  queue_->changed.notify_all();
}

void SerialExecutor::work(const std::shared_ptr<Queue>& queue) {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(queue->mutex);
      queue->changed.wait(lock, [&] { return queue->closed || !queue->tasks.empty(); });
      if (queue->tasks.empty()) {
        queue->done = true;
        break;
      }
      task = std::move(queue->tasks.front());
      queue->tasks.pop_front();
    }
    task();
  }
  queue->changed.notify_all();
}

}  // namespace titan::daemon
