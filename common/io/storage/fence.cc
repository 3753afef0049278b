#include "common/io/storage/fence.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/io/storage/fence_record.h"
#include "common/io/storage/folder_id.h"
#include "common/io/storage/process_identity.h"

namespace titan::storage {
namespace {

// A release that would wait for longer is skipped: the next job then waits for kFenceHeartbeatTimeout.
constexpr absl::Duration kReleaseTimeout = absl::Seconds(2);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(250);

std::string the_folder(const std::string& dump_folder) { return "the dump folder " + dump_folder; }

}  // namespace

absl::StatusOr<Fence::Holder> Fence::holder() const {
  absl::StatusOr<std::string> text = read_file(files_, path(kFenceFile), 1 << 24);
  if (absl::IsNotFound(text.status())) return Holder{};
  if (!text.ok()) return text.status();
  return holder_from_text(path(kFenceFile), *text);
}

absl::StatusOr<std::unique_ptr<FileLock>> Fence::lock(absl::Duration timeout) const {
  return files_.lock(path(kFenceLock), LockMode::kExclusive, timeout);
}

absl::Status Fence::write(const Holder& holder) const {
  return atomic_write(files_, path(kFenceFile), to_json(holder).dump() + "\n");
}

// Same as holder_is_silent(), but also true when the beat was watched for long enough.
absl::StatusOr<bool> Fence::silent(const Claim& claim, const Holder& holder) const {
  if (claim.stale_heartbeat) {
    const absl::StatusOr<absl::Time> beat = files_.modified(path(kFenceAlive));
    if (beat.ok() && claim.stale_heartbeat == *beat) return true;
  }
  return holder_is_silent(files_, dump_folder_, holder);
}

// Returns OK when `claim` may take the folder from `holder`.
absl::Status Fence::admit(const Claim& claim, const Holder& holder) const {
  const bool by_hand = claim.attempt == 0;
  if (holder.job_uid == claim.job_uid && !by_hand) {
    return holder.attempt > claim.attempt
               ? fenced_status(the_folder(dump_folder_), claim.job_uid, claim.attempt, holder)
               : absl::OkStatus();
  }
  // A job that lost the folder must not take it back: two jobs would train one model alternately.
  if (!by_hand && holder.former.contains(claim.job_uid)) {
    return fenced_status(the_folder(dump_folder_), claim.job_uid, claim.attempt, holder);
  }
  if (holder.job_uid.empty() || holder.released) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const bool free, silent(claim, holder));
  if (free) return absl::OkStatus();
  return in_use_status(the_folder(dump_folder_), holder, "another job.dump_folder");
}

absl::StatusOr<Fence::Taken> Fence::raise(const Claim& claim) const {
  if (claim.create_folder) TITAN_RETURN_IF_ERROR(files_.make_folders(dump_folder_));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> held, lock(kFenceLockTimeout));
  TITAN_ASSIGN_OR_RETURN(Holder holder, this->holder());
  TITAN_RETURN_IF_ERROR(admit(claim, holder));
  Taken taken{.attempt = claim.attempt};
  const bool same_job = holder.job_uid == claim.job_uid;
  if (taken.attempt == 0) {
    const auto former = holder.former.find(claim.job_uid);
    taken.attempt = 1 + std::max(same_job ? holder.attempt : 0, former == holder.former.end() ? 0 : former->second);
  }
  const bool next_attempt = same_job && claim.attempt != 0;
  if (!next_attempt && !holder.job_uid.empty() && !holder.released) taken.taken_from = describe(holder);
  hand_over(holder, claim, taken.attempt);
  TITAN_ASSIGN_OR_RETURN(holder.folder, make_folder_id(files_, dump_folder_));
  // Precedes the record that names this job, because the next contender must find it alive.
  if (!claim.process.empty()) TITAN_RETURN_IF_ERROR(files_.touch(path(kFenceAlive)).status());
  TITAN_RETURN_IF_ERROR(write(holder));
  taken.folder = holder.folder;
  taken.committed = std::move(holder.committed);
  return taken;
}

absl::StatusOr<Fence::Taken> Fence::take(Claim claim, const Watch& watch) const {
  std::optional<absl::Time> seen;
  for (absl::Duration waited;; waited += kWatchInterval) {
    absl::StatusOr<Taken> taken = raise(claim);
    if (!is_in_use(taken.status())) return taken;
    const absl::StatusOr<absl::Time> beat = files_.modified(path(kFenceAlive));
    if (!beat.ok()) return beat.status();
    if (seen && *seen != *beat) return taken;  // The holder is alive.
    if (!seen && watch.say) {
      const absl::StatusOr<Holder> holder = this->holder();
      watch.say(absl::StrCat("the dump folder ", dump_folder_, " was not released by ",
                             holder.ok() ? describe(*holder) : "its last job", ": it becomes free after ",
                             absl::FormatDuration(kFenceHeartbeatTimeout), " without a sign of life"));
    }
    seen = *beat;
    if (waited >= kFenceHeartbeatTimeout) claim.stale_heartbeat = seen;
    watch.sleep ? watch.sleep(kWatchInterval) : absl::SleepFor(kWatchInterval);
  }
}

absl::Status Fence::beat(const std::string& job_uid, int attempt) const {
  TITAN_ASSIGN_OR_RETURN(const Holder holder, this->holder());
  if (holder.job_uid != job_uid || holder.attempt != attempt)
    return fenced_status(the_folder(dump_folder_), job_uid, attempt, holder);
  return files_.touch(path(kFenceAlive)).status();
}

absl::Status Fence::release(const std::string& job_uid, int attempt) const {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> held, lock(kReleaseTimeout));
  TITAN_ASSIGN_OR_RETURN(Holder holder, this->holder());
  if (holder.job_uid != job_uid || holder.attempt != attempt)
    return fenced_status(the_folder(dump_folder_), job_uid, attempt, holder);
  holder.released = true;
  return write(holder);
}

absl::Status Fence::publish(const std::string& job_uid, int attempt, absl::FunctionRef<absl::Status()> effect) const {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> held, lock(kFenceLockTimeout));
  TITAN_ASSIGN_OR_RETURN(const Holder holder, this->holder());
  if (holder.job_uid != job_uid || holder.attempt != attempt)
    return fenced_status(the_folder(dump_folder_), job_uid, attempt, holder);
  return effect();
}

absl::Status Fence::publish_step(const std::string& job_uid, int attempt, const std::string& folder, int64_t step,
                                 absl::FunctionRef<absl::Status()> effect) const {
  return publish(job_uid, attempt, [&]() -> absl::Status {
    TITAN_RETURN_IF_ERROR(effect());
    if (absl::StatusOr<Holder> holder = this->holder(); holder.ok()) {
      holder->committed[folder] = {step, job_uid};
      write(*holder).IgnoreError();
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> holder_is_silent(Files& files, const std::string& dump_folder, const Fence::Holder& holder) {
  if (process_has_ended(holder.process)) return true;
  const absl::StatusOr<absl::Time> beat = files.modified(join_path(dump_folder, kFenceAlive));
  if (absl::IsNotFound(beat.status())) return true;  // Holders of older versions do not beat.
  if (!beat.ok()) return beat.status();
  const std::string probe = join_path(dump_folder, kFenceProbe);
  TITAN_ASSIGN_OR_RETURN(const absl::Time now, files.touch(probe));
  files.remove(probe).IgnoreError();
  return now - *beat >= kFenceHeartbeatTimeout;
}

absl::Status while_idle(Files& files, const std::string& dump_folder,
                        absl::FunctionRef<absl::Status(const Fence::Holder& last)> effect) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> held,
                         files.lock(join_path(dump_folder, kFenceLock), LockMode::kExclusive, kFenceLockTimeout));
  TITAN_ASSIGN_OR_RETURN(const Fence::Holder holder, Fence(dump_folder, files).holder());
  if (!holder.job_uid.empty() && !holder.released) {
    TITAN_ASSIGN_OR_RETURN(const bool silent, holder_is_silent(files, dump_folder, holder));
    if (!silent) return in_use_status("the dump folder " + dump_folder, holder, "a folder that no job uses");
  }
  return effect(holder);
}

FenceLease::FenceLease(Fence fence, std::string job_uid, int attempt, absl::Duration every)
    : fence_(std::move(fence)), job_uid_(std::move(job_uid)), attempt_(attempt), every_(every), thread_([this] {
        beat();
      }) {}

FenceLease::~FenceLease() {
  sync::Lock lock(ending_);
  stop();
}

void FenceLease::stop() {
  {
    sync::Lock lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FenceLease::release() {
  sync::Lock lock(ending_);
  if (released_) return;
  released_ = true;
  stop();
  fence_.release(job_uid_, attempt_).IgnoreError();  // If this fails, the next job waits for kFenceHeartbeatTimeout.
}

// Beats until stop(). A single failed beat does no harm; the beats end early only when the fence names another holder.
void FenceLease::beat() {
  while (!is_fenced(fence_.beat(job_uid_, attempt_))) {
    sync::Lock lock(mutex_);
    if (!stop_) stopping_.wait_for(mutex_, absl::ToChronoNanoseconds(every_));
    if (stop_) return;
  }
}

}  // namespace titan::storage
