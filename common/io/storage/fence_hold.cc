#include "common/io/storage/fence_hold.h"

namespace titan::storage {

FenceHold::FenceHold(Fence fence, std::string job_uid, int attempt, absl::Duration every)
    : fence_(std::move(fence)), job_uid_(std::move(job_uid)), attempt_(attempt), every_(every), thread_([this] {
        beat();
      }) {}

FenceHold::~FenceHold() {
  sync::Lock lock(ending_);
  stop();
}

void FenceHold::stop() {
  {
    sync::Lock lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FenceHold::release() {
  sync::Lock lock(ending_);
  if (released_) return;
  released_ = true;
  stop();
  fence_.release(job_uid_, attempt_).IgnoreError();  // Then the next job waits for the silence.
}

// A beat that fails for once is one of many; only a fence that names somebody else ends them.
void FenceHold::beat() {
  while (!is_fenced(fence_.beat(job_uid_, attempt_))) {
    sync::Lock lock(mutex_);
    if (!stop_) stopping_.wait_for(mutex_, absl::ToChronoNanoseconds(every_));
    if (stop_) return;
  }
}

}  // namespace titan::storage
