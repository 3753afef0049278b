#pragma once

// Guards a dump folder with a fence: who may publish there, how a holder shows that it lives, and how a tool works
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

// While a holder lives it touches {dump}/.fence-alive this often.
inline constexpr absl::Duration kFenceBeat = absl::Seconds(2);
// A holder that was silent for this long may lose the folder to another job.
inline constexpr absl::Duration kFenceSilence = absl::Seconds(15);

// {dump}/fence.json names the one job, and of it the highest attempt, that may publish there. Publishing (manifest
// rename, metrics append) holds an exclusive lock on {dump}/.fence.lock from the check to its effect, so that a paused
// old attempt that wakes changes nothing.
//
// A job's own next attempt takes the fence at once. Another job takes it only when the holder has released it, is a
// process that is seen to be gone, or has shown no sign of life for kFenceSilence; who lost it never gets it back.
class Fence {
 public:
  // The newest full step that was published under a checkpoint folder, and by whom.
  struct Committed {
    int64_t step = -1;
    std::string job_uid;
  };

  struct Holder {
    std::string job_uid;  // Empty: nobody yet.
    int attempt = 0;
    std::string job, host;  // For messages: the job's full name, the machine and process of its rank 0.
    int64_t pid = 0;
    std::string process;                         // See process_identity.h.
    bool released = false;                       // It has ended and gave the folder back.
    std::string folder;                          // The folder's id (folder_id.h).
    std::map<std::string, Committed> committed;  // By name of the checkpoint folder in the dump folder.
    std::map<std::string, int> former;           // Jobs that held the folder before, with their highest attempt.
  };

  // Who wants the folder.
  struct Claim {
    std::string job_uid;
    // 0: started by hand. Takes the number after the job's last one, and may come back to a folder that it lost: a
    // person says so, and the names of such jobs repeat.
    int attempt = 0;
    std::string job, host;
    int64_t pid = 0;
    std::string process;        // Empty: shows no sign of life.
    bool create_folder = true;  // Makes the dump folder when it is missing.
    // This very beat was watched for long enough and did not move: counts as silence whatever the clocks say.
    std::optional<absl::Time> silent_beat;
  };

  struct Taken {
    int attempt = 0;
    std::string folder;      // The folder's id.
    std::string taken_from;  // Describes the holder that was silent and had not released; else empty.
    std::map<std::string, Committed> committed;
  };

  // How take() waits for a holder that may be dead.
  struct Watch {
    std::function<void(absl::Duration)> sleep;         // Empty: really sleeps.
    std::function<void(const std::string& text)> say;  // May be empty: that it waits, and for whom.
  };

  explicit Fence(std::string dump_folder, Files& files = posix_files())
      : dump_folder_(std::move(dump_folder)), files_(files) {}

  // Raises the fence for `claim`, makes the folder's id when there is none, and shows a first sign of life. Errors:
  // is_fenced() when the same job's fence is higher or another job has taken the folder over; is_in_use() when another
  // job holds it and may live.
  absl::StatusOr<Taken> raise(const Claim& claim) const;
  // The same, and while another job holds the folder watches its signs of life: is_in_use() as soon as one is seen, the
  // folder when there was none for kFenceSilence.
  absl::StatusOr<Taken> take(Claim claim, const Watch& watch) const;
  // raise() with nothing but the names.
  absl::Status raise(const std::string& job_uid, int attempt) const {
    return raise(Claim{.job_uid = job_uid, .attempt = attempt}).status();
  }

  // Shows a sign of life if the fence still names (job_uid, attempt); is_fenced() otherwise. Does not wait for the
  // lock.
  absl::Status beat(const std::string& job_uid, int attempt) const;
  // Gives the folder back if it is still held by (job_uid, attempt): the next job need not wait.
  absl::Status release(const std::string& job_uid, int attempt) const;

  // Runs `effect` under the lock if the fence still names exactly (job_uid, attempt); else FailedPrecondition "fenced:
  // ...".
  absl::Status publish(const std::string& job_uid, int attempt, absl::FunctionRef<absl::Status()> effect) const;
  // The same for the manifest of a full step of {dump}/`folder`: the fence remembers it, so that a start that finds no
  // step knows that there was one. The manifest counts; a memory that could not be written lags behind it.
  absl::Status publish_step(const std::string& job_uid, int attempt, const std::string& folder, int64_t step,
                            absl::FunctionRef<absl::Status()> effect) const;

  // Who may publish now. DataLoss when fence.json cannot be understood.
  absl::StatusOr<Holder> holder() const;

 private:
  std::string path(const char* name) const { return join_path(dump_folder_, name); }
  absl::StatusOr<std::unique_ptr<FileLock>> lock(absl::Duration patience) const;
  absl::Status write(const Holder& holder) const;
  absl::StatusOr<bool> silent(const Claim& claim, const Holder& holder) const;
  absl::Status admit(const Claim& claim, const Holder& holder) const;

  std::string dump_folder_;
  Files& files_;
};

// True for the status that publish() and raise() give to an attempt that may not publish any more.
bool is_fenced(const absl::Status& status);
// True for the status of a folder that another job uses.
bool is_in_use(const absl::Status& status);

// No sign of life of the holder for kFenceSilence, by the file system's clock, or its process is seen to be gone.
absl::StatusOr<bool> fell_silent(Files& files, const std::string& dump_folder, const Fence::Holder& holder);

// For programs that are not jobs and tidy up in a dump folder: runs `effect` while no job holds the folder and none can
// begin to, under the fence's lock; the fence names the same holder afterwards. Errors: is_in_use() when a job holds it
// and may live.
absl::Status while_idle(Files& files, const std::string& dump_folder,
                        absl::FunctionRef<absl::Status(const Fence::Holder& last)> effect);

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
