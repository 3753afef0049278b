#include "common/io/storage/idle_fence.h"

#include "common/base/status/status.h"
#include "common/io/storage/fence_record.h"
#include "common/io/storage/process_identity.h"

namespace titan::storage {

absl::StatusOr<bool> fell_silent(Files& files, const std::string& dump_folder, const Fence::Holder& holder) {
  if (certainly_gone(holder.process)) return true;
  const absl::StatusOr<absl::Time> beat = files.modified(join_path(dump_folder, kFenceAlive));
  if (absl::IsNotFound(beat.status())) return true;  // Holders of older versions show none.
  if (!beat.ok()) return beat.status();
  const std::string probe = join_path(dump_folder, kFenceProbe);
  TITAN_ASSIGN_OR_RETURN(const absl::Time now, files.touch(probe));
  files.remove(probe).IgnoreError();
  return now - *beat >= kFenceSilence;
}

absl::Status while_idle(Files& files, const std::string& dump_folder,
                        absl::FunctionRef<absl::Status(const Fence::Holder& last)> effect) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> held,
                         files.lock(join_path(dump_folder, kFenceLock), LockMode::kExclusive, kFencePatience));
  TITAN_ASSIGN_OR_RETURN(const Fence::Holder holder, Fence(dump_folder, files).holder());
  if (!holder.job_uid.empty() && !holder.released) {
    TITAN_ASSIGN_OR_RETURN(const bool silent, fell_silent(files, dump_folder, holder));
    if (!silent) return in_use_status("the dump folder " + dump_folder, holder, "a folder that no job uses");
  }
  return effect(holder);
}

}  // namespace titan::storage
