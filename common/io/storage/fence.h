#pragma once

// Guards a dump folder with a fence: decides who may publish there, shows that a holder is alive, and lets tools work
// while no job does.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/io/storage/file.h"

namespace titan::storage {

// A live holder touches {dump}/.fence-alive this often.
inline constexpr absl::Duration kFenceHeartbeatInterval = absl::Seconds(2);
// A holder that was silent for this long may lose the folder to another job.
inline constexpr absl::Duration kFenceHeartbeatTimeout = absl::Seconds(15);

// {dump}/fence.json names the one job, and its highest attempt, that may publish there. Publishing (manifest rename,
// metrics append) holds an exclusive lock on {dump}/.fence.lock from the check to its effect, so that a paused old
// attempt that wakes up changes nothing.
//
// The job's own next attempt takes the fence at once. Another job takes it only when the holder has released it, its
// process has visibly ended, or it has shown no sign of life for kFenceHeartbeatTimeout. A job that lost the fence
// never gets it back, unless it is started by hand.
class Fence {
 public:
  // The newest full step that was published under a checkpoint folder, and the job that published it.
  struct Committed {
    int64_t step = -1;
    std::string job_uid;
  };

  struct Holder {
    std::string job_uid;  // Empty: no holder yet.
    int attempt = 0;
    std::string job, host;  // For messages: the job's full name, the machine and process of its rank 0.
    int64_t pid = 0;
    std::string process;                         // See process_identity.h.
    bool released = false;                       // It has ended and released the folder.
    std::string folder;                          // The folder's id (folder_id.h).
    std::map<std::string, Committed> committed;  // By name of the checkpoint folder in the dump folder.
    std::map<std::string, int> former;           // Former holders, with their highest attempt.
  };

  // A job's request for the folder.
  struct Claim {
    std::string job_uid;
    // 0: started by hand. It gets the number after the job's last one and may return to a folder that it lost, because
    // a person decides so and the names of such jobs repeat.
    int attempt = 0;
    std::string job, host;
    int64_t pid = 0;
    std::string process;        // Empty: it shows no signs of life.
    bool create_folder = true;  // Create the dump folder when it is missing.
    // Time of a beat that did not change while it was watched for long enough: the holder is silent, whatever the
    // clocks say.
    std::optional<absl::Time> stale_heartbeat;
  };

  struct Taken {
    int attempt = 0;
    std::string folder;      // The folder's id.
    std::string taken_from;  // Describes a previous holder that was silent and had not released; else empty.
    std::map<std::string, Committed> committed;
  };

  // How take() waits for a holder that may be dead.
  struct Watch {
    std::function<void(absl::Duration)> sleep;         // Empty: absl::SleepFor.
    std::function<void(const std::string& text)> say;  // Reports that it waits, and for whom. May be empty.
  };

  explicit Fence(std::string dump_folder, Files& files = posix_files())
      : dump_folder_(std::move(dump_folder)), files_(files) {}

  // Raises the fence for `claim`, makes a missing folder id, and shows a first sign of life if the claim has a process.
  // Errors: Unavailable when the lock is held for kFenceLockTimeout; is_fenced() when the same job's fence is higher or
  // another job has taken the folder over; is_in_use() when another job holds it and may be alive.
  absl::StatusOr<Taken> raise(const Claim& claim) const;
  // Same as raise(), but watches the signs of life of another job that holds the folder. Fails with is_in_use() as soon
  // as it sees one, and takes the folder after kFenceHeartbeatTimeout without one.
  absl::StatusOr<Taken> take(Claim claim, const Watch& watch) const;
  // Calls raise() with only the names.
  absl::Status raise(const std::string& job_uid, int attempt) const {
    return raise(Claim{.job_uid = job_uid, .attempt = attempt}).status();
  }

  // Shows a sign of life if the fence still names (job_uid, attempt); otherwise fails with is_fenced(). Does not wait
  // for the lock.
  absl::Status beat(const std::string& job_uid, int attempt) const;
  // Releases the folder if (job_uid, attempt) still holds it, so that the next job need not wait.
  absl::Status release(const std::string& job_uid, int attempt) const;

  // Runs `effect` under the lock if the fence still names exactly (job_uid, attempt). Errors: FailedPrecondition
  // "fenced: ..." (is_fenced()); Unavailable when the lock is held for kFenceLockTimeout; those of `effect`.
  absl::Status publish(const std::string& job_uid, int attempt, absl::FunctionRef<absl::Status()> effect) const;
  // Same as publish(), for the manifest of a full step of {dump}/`folder`. The fence records the step, so that a start
  // that finds no step knows that there was one. The step is committed even if the fence cannot record it.
  absl::Status publish_step(const std::string& job_uid, int attempt, const std::string& folder, int64_t step,
                            absl::FunctionRef<absl::Status()> effect) const;

  // Returns the holder that may publish now. DataLoss when fence.json is malformed.
  absl::StatusOr<Holder> holder() const;

 private:
  std::string path(const char* name) const { return join_path(dump_folder_, name); }
  absl::StatusOr<std::unique_ptr<FileLock>> lock(absl::Duration timeout) const;
  absl::Status write(const Holder& holder) const;
  absl::StatusOr<bool> silent(const Claim& claim, const Holder& holder) const;
  absl::Status admit(const Claim& claim, const Holder& holder) const;

  std::string dump_folder_;
  Files& files_;
};

// Returns whether a call failed because the attempt may not publish any more.
bool is_fenced(const absl::Status& status);
// Returns whether a call failed because another job uses the folder.
bool is_in_use(const absl::Status& status);

// Returns whether the holder's process has visibly ended, or the holder showed no sign of life for
// kFenceHeartbeatTimeout, by the file system's clock, or never.
absl::StatusOr<bool> holder_is_silent(Files& files, const std::string& dump_folder, const Fence::Holder& holder);

// Runs `effect` under the fence's lock, while no live job holds the folder and none can take it. For programs that are
// not jobs and clean up a dump folder. The fence names the same holder afterwards. Errors: is_in_use() when a job holds
// it and may be alive.
absl::Status while_idle(Files& files, const std::string& dump_folder,
                        absl::FunctionRef<absl::Status(const Fence::Holder& last)> effect);

// Shows that the holder of a fence is alive, on a separate thread that training cannot block, and releases the folder
// at the end.
class FenceLease {
 public:
  FenceLease(Fence fence, std::string job_uid, int attempt, absl::Duration every = kFenceHeartbeatInterval);
  ~FenceLease();  // Stops without releasing the folder.
  FenceLease(const FenceLease&) = delete;
  FenceLease& operator=(const FenceLease&) = delete;

  // Lets another job take the folder at once. Waits at most 2 s for the fence's lock, and does nothing when the fence
  // has another holder by now. Thread-safe; only the first call has an effect.
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
  sync::Mutex ending_;  // Held by the thread that ends the lease.
  bool released_ TITAN_GUARDED_BY(ending_) = false;
  std::thread thread_;
};

}  // namespace titan::storage
