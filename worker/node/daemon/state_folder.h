#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/host/descriptor.h"
#include "common/base/sync/sync.h"
#include "common/io/storage/folder_guard.h"
#include "worker/node/core/attempt_record.h"

namespace titan::daemon {

using node::AttemptKey;
using node::AttemptRecord;
using node::valid_uid;

// {state}/
//   daemon.lock              one daemon per folder
//   instance                 random id of this folder
//   node                     id of the node that owns these attempts
//   cluster                  id of the worker's cluster, from its first controller
//   leader_epoch             highest epoch of a controller that this worker obeyed; leader_epoch.copy: a copy
//   trash/                   run folders that are being deleted
//   jobs/{uid}/fence         highest attempt that was ever prepared here
//   jobs/{uid}/attempt-{n}/  run folder: attempt.json, offsets.json, launch.json, and files of shim and ranks
//   ranks/{uid}-{n}/         files of ranks that run as another user, owned by that user
// Only the folder's owner can read the rest.
class StateFolder {
 public:
  // Creates what is missing. Errors: AlreadyExists when another daemon holds the folder.
  static absl::StatusOr<StateFolder> open(const std::string& path);

  const std::string& instance() const { return instance_; }
  // Makes this the folder of `node`. Returns the node that owned it before, or an empty text. Errors: InvalidArgument
  // while it contains attempts of another node that the controller has not forgotten: under the new name nobody would
  // own their ranks.
  absl::StatusOr<std::string> claim_for(const std::string& node) const;
  // Checks that this is still the folder that was opened. Errors: see FolderGuard.
  absl::Status check_same() const { return guard_.check_same(); }
  absl::Status check_writable(int64_t least_bytes) const { return guard_.check_writable(least_bytes); }
  // Returns the id of the worker's cluster; empty before the first controller.
  absl::StatusOr<std::string> cluster() const;
  absl::Status join(const std::string& cluster) const;  // Durable.
  // Returns the highest epoch of a leader; 0 before the first leader. `damage`: set when one of the two files is
  // damaged. Errors: a file is damaged and the other one has no epoch, because an older leader must not be obeyed.
  absl::StatusOr<int64_t> leader_epoch(std::string* damage = nullptr) const;
  absl::Status write_leader_epoch(int64_t epoch) const;  // Durable.
  std::string run_folder(const AttemptKey& key) const;
  // Returns where the attempt's ranks write: their own folder if they run as another user, else the run folder.
  std::string rank_folder(const AttemptKey& key) const;
  absl::StatusOr<std::string> make_rank_folder(const AttemptKey& key, uid_t uid, gid_t gid) const;

  // Returns the job's highest attempt; 0 if the job never ran here. A fence that does not contain a number is rebuilt
  // from the run folders; `damage` then describes it. Errors: DataLoss when the file cannot be read, so that no attempt
  // of this job may start.
  absl::StatusOr<int> highest_attempt(const std::string& job_uid, std::string* damage = nullptr) const;
  // Durably records the attempt unless a higher one is recorded. Returns the highest, including this one. Errors: those
  // of highest_attempt() and of writing.
  absl::StatusOr<int> raise_fence(const AttemptKey& key, std::string* damage = nullptr) const;

  // Creates the run folder with the record, after removing what an earlier try left there.
  absl::Status add(const AttemptRecord& record) const;
  absl::Status save(const AttemptRecord& record) const;
  // Returns the records of all run folders; damaged ones as rebuilt by rebuild_record(). A folder without a record is
  // ignored.
  std::vector<AttemptRecord> load_all() const;
  // Rewrites damaged records as they were rebuilt. Returns a description of each. Errors: a folder cannot be listed.
  absl::StatusOr<std::vector<std::string>> repair_records() const;

  // Removes run folders of forgotten attempts: those older than `age`, then the oldest until all take at most `bytes`.
  void remove_old(absl::Duration age, int64_t bytes) const;
  void remove(const AttemptKey& key) const;
  // Deletes what only a live attempt needs. Logs and exit records stay.
  void strip(const AttemptKey& key) const;

 private:
  StateFolder(std::string path, host::Descriptor lock, std::string instance, storage::FolderGuard guard)
      : path_(std::move(path)), lock_(std::move(lock)), instance_(std::move(instance)), guard_(std::move(guard)) {}
  struct Item {
    std::string folder;
    absl::StatusOr<AttemptRecord> record;
    std::string damage;  // Describes the damage of its file and the repair. Empty: none.
  };
  Item item_of(const std::string& folder, const std::string& job_uid, const absl::StatusOr<std::string>& text) const;
  absl::StatusOr<std::vector<Item>> read_all() const;
  absl::Status set_aside(const std::string& folder) const;
  absl::Status set_all_aside(const AttemptKey& key) const;
  std::string own_rank_folder(const AttemptKey& key) const;
  bool discard(const AttemptRecord& record) const;
  void remove_fence(const std::string& job_uid) const;
  void empty_trash() const;

  std::string path_;
  host::Descriptor lock_;
  std::string instance_;
  storage::FolderGuard guard_;
  // Held while run folders are created or moved away.
  std::unique_ptr<sync::Mutex> mutex_ = std::make_unique<sync::Mutex>();
};

// Returns a prefix for the names of the ranks' control groups, because daemons of several state folders may share a
// parent group.
std::string group_prefix(const StateFolder& state);

}  // namespace titan::daemon
