#include "worker/node/daemon/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "worker/node/shim/process.h"

namespace titan::daemon {

Loop::Mailbox::Mailbox() : wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Loop::Mailbox::post(Task task) {
  {
    sync::Lock lock(mutex);
    tasks.push_back(std::move(task));
  }
  const uint64_t one = 1;
  (void)!::write(wake.get(), &one, sizeof(one));
}

std::vector<Loop::Task> Loop::Mailbox::take() {
  sync::Lock lock(mutex);
  return std::exchange(tasks, {});
}

Loop::Loop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), mailbox_(std::make_shared<Mailbox>()) {
  watch(mailbox_->wake.get(), [this] {
    uint64_t ignored = 0;
    (void)!::read(mailbox_->wake.get(), &ignored, sizeof(ignored));
  });
}

void Loop::run() {
  while (!stopped_) {
    epoll_event events[64];
    const int count = ::epoll_wait(epoll_.get(), events, 64, wait_milliseconds());
    for (int i = 0; i < count; ++i) {
      const auto found = watched_.find(events[i].data.fd);
      if (found == watched_.end()) continue;  // Removed by an earlier task of this round.
      const std::shared_ptr<Task> task = found->second;
      (*task)();
    }
    run_posted();
    run_timers();
  }
}

void Loop::watch(int fd, Task on_readable) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  const bool known = watched_.count(fd) > 0;
  watched_[fd] = std::make_shared<Task>(std::move(on_readable));
  ::epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
}

void Loop::unwatch(int fd) {
  if (watched_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Loop::Timer Loop::after(absl::Duration delay, Task task) {
  const Timer timer = next_timer_++;
  const int64_t deadline = shim::monotonic_nanos() + absl::ToInt64Nanoseconds(delay);
  timers_.emplace(std::pair(deadline, timer), std::move(task));
  deadlines_[timer] = deadline;
  return timer;
}

void Loop::cancel(Timer timer) {
  const auto found = deadlines_.find(timer);
  if (found == deadlines_.end()) return;
  timers_.erase({found->second, timer});
  deadlines_.erase(found);
}

void Loop::run_posted() {
  for (const Task& task : mailbox_->take()) task();
}

void Loop::run_timers() {
  const int64_t now = shim::monotonic_nanos();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    deadlines_.erase(node.key().second);
    node.mapped()();
  }
}

int Loop::wait_milliseconds() const {
  if (stopped_) return 0;
  if (timers_.empty()) return -1;
  const int64_t left = timers_.begin()->first.first - shim::monotonic_nanos();
  return static_cast<int>(std::clamp<int64_t>((left + 999'999) / 1'000'000, 0, 60'000));
}

}  // namespace titan::daemon
