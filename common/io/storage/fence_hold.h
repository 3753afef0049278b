#pragma once

#include <string>
#include <thread>

#include "common/base/sync/sync.h"
#include "common/io/storage/fence.h"

namespace titan::storage {

// Shows that the holder of a fence lives, on a thread of its own that training cannot hold up, and gives the folder
// back at the end.
class FenceHold {
 public:
  FenceHold(Fence fence, std::string job_uid, int attempt, absl::Duration every = kFenceBeat);
  ~FenceHold();  // Falls silent without giving the folder back.
  FenceHold(const FenceHold&) = delete;
  FenceHold& operator=(const FenceHold&) = delete;

  // Another job may take the folder at once. Takes a few seconds at most, and does nothing when the fence is somebody
  // else's by now. Thread-safe; what comes after the first call does nothing.
  void release();

 private:
  void beat();
  void stop();

  const Fence fence_;
  const std::string job_uid_;
  const int attempt_;
  const absl::Duration every_;
  sync::Mutex mutex_;
  sync::Condition stopping_;
  bool stop_ TITAN_GUARDED_BY(mutex_) = false;
  sync::Mutex ending_;  // Held by the one who ends it.
  bool released_ TITAN_GUARDED_BY(ending_) = false;
  std::thread thread_;
};

}  // namespace titan::storage
