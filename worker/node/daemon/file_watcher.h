#pragma once

#include <functional>
#include <map>
#include <string>

#include "common/base/host/descriptor.h"
#include "worker/node/daemon/loop.h"

namespace titan::daemon {

// Runs a task on the loop soon after bytes were written to a file (inotify). Several writes may cause one call. When
// the kernel has no watches left, add() returns false and the caller must poll.
class FileWatcher {
 public:
  explicit FileWatcher(Loop& loop);
  ~FileWatcher();
  FileWatcher(const FileWatcher&) = delete;
  FileWatcher& operator=(const FileWatcher&) = delete;

  bool add(const std::string& path, std::function<void()> task);
  void remove(const std::string& path);

 private:
  void on_readable();

  Loop& loop_;
  host::Descriptor inotify_;
  std::map<int, std::function<void()>> tasks_;
  std::map<std::string, int> watches_;
};

}  // namespace titan::daemon
