#include "worker/rank/runtime/profiling/memory_snapshots.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/device/memory_snapshot.h"
#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

MemorySnapshots::MemorySnapshots(const config::ProfilingSection& config, Setup setup, device::Device& device)
    : steps_between_(config.profile_freq), setup_(std::move(setup)) {
  if (!config.enable_memory_snapshot) return;
  names_.emplace();
  if (setup_.writes) history_ = std::make_unique<MemoryHistory>(device, kMaxMemoryEvents);
}

void MemorySnapshots::end_step(int64_t step) {
  if (history_ && step % steps_between_ == 0) save(absl::StrCat("iteration_", step));
}

void MemorySnapshots::failed(int64_t finished_steps) {
  if (!history_) return;
  try {
    if (current_failure().exit_code() != rank_protocol::kExitOutOfMemory) return;
    save(absl::StrCat("iteration_", finished_steps, "_exit"));
  } catch (const std::exception&) {  // Only the original failure is reported.
  }
}

void MemorySnapshots::save(const std::string& iteration) {
  const std::string folder = storage::join_path(setup_.folder, iteration);
  const std::string path = absl::StrCat(folder, "/rank", setup_.rank, "_memory_snapshot.pickle");
  absl::Status status;
  try {
    status = write(folder, path);
  } catch (const std::exception& error) {  // For example out of memory: saving must not replace the original failure.
    status = absl::InternalError(error.what());
  }
  if (status.ok()) {
    setup_.say(absl::StrCat("Memory snapshot: ", path));
  } else {
    setup_.warn(absl::StrCat("the memory snapshot is lost: ", status.message()));
  }
}

absl::Status MemorySnapshots::write(const std::string& folder, const std::string& path) const {
  const std::string bytes = device::to_pickle(history_->snapshot());
  TITAN_RETURN_IF_ERROR(setup_.files->make_folders(folder));
  return storage::atomic_write(*setup_.files, path, bytes);
}

}  // namespace titan::runtime
