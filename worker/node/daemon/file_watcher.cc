#include "worker/node/daemon/file_watcher.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <set>

namespace titan::daemon {

FileWatcher::FileWatcher(Loop& loop) : loop_(loop), inotify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  if (inotify_) loop_.watch(inotify_.get(), [this] { on_readable(); });
}

FileWatcher::~FileWatcher() {
  if (inotify_) loop_.unwatch(inotify_.get());
}

bool FileWatcher::add(const std::string& path, std::function<void()> task) {
  const int watch = inotify_ ? ::inotify_add_watch(inotify_.get(), path.c_str(), IN_MODIFY | IN_DONT_FOLLOW) : -1;
  if (watch < 0) return false;
  watches_[path] = watch;
  tasks_[watch] = std::move(task);
  return true;
}

void FileWatcher::remove(const std::string& path) {
  const auto found = watches_.find(path);
  if (found == watches_.end()) return;
  ::inotify_rm_watch(inotify_.get(), found->second);
  tasks_.erase(found->second);
  watches_.erase(found);
}

void FileWatcher::on_readable() {
  std::set<int> changed;
  alignas(inotify_event) char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(inotify_.get(), buffer, sizeof(buffer));
    if (n <= 0) break;
    for (ssize_t at = 0; at < n;) {
      const auto* const event = reinterpret_cast<const inotify_event*>(buffer + at);
      if ((event->mask & IN_Q_OVERFLOW) != 0) {
        for (const auto& [watch, task] : tasks_) changed.insert(watch);
      }
      changed.insert(event->wd);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
  }
  for (const int watch : changed) {
    const auto found = tasks_.find(watch);
    if (found == tasks_.end()) continue;
    const std::function<void()> task = found->second;  // The task may remove its own watch.
    task();
  }
}

}  // namespace titan::daemon
