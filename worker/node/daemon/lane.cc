#include "worker/node/daemon/lane.h"

#include <utility>

namespace titan::daemon {

Lane::Lane(std::chrono::milliseconds end_patience)
    : end_patience_(end_patience), queue_(std::make_shared<Queue>()), thread_([queue = queue_] { work(queue); }) {}

Lane::~Lane() {
  bool done = false;
  {
    std::unique_lock lock(queue_->mutex);
    queue_->closed = true;
    queue_->changed.notify_all();
    done = queue_->changed.wait_for(lock, end_patience_, [this] { return queue_->done; });
  }
  if (done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Lane::run(Task task) {
  {
    sync::Lock lock(queue_->mutex);
    queue_->tasks.push_back(std::move(task));
  }
  queue_->changed.notify_all();
}

void Lane::work(const std::shared_ptr<Queue>& queue) {
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
