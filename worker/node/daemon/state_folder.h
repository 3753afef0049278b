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
//   node                     id of the node whose attempts lie here
//   cluster                  id of the cluster that this worker belongs to, from its first controller
//   leader_epoch             highest epoch of a controller that this worker has obeyed; leader_epoch.copy: the same
//   trash/                   run folders that are being deleted
//   jobs/{uid}/fence         highest attempt that was ever prepared here
//   jobs/{uid}/attempt-{n}/  run folder: attempt.json, offsets.json, launch.json, and what shim and ranks write
//   ranks/{uid}-{n}/         what ranks of another user write, theirs; nobody but the owner of all this reads the rest
class StateFolder {
 public:
  // Creates what is missing. Errors: AlreadyExists when another daemon holds the folder.
  static absl::StatusOr<StateFolder> open(const std::string& path);

  const std::string& instance() const { return instance_; }
  // Makes this the folder of `node`. Gives the node whose it was, or an empty text. Errors: InvalidArgument while it
  // holds attempts of another node that its controller has not forgotten: under another name nobody would own their
  // ranks.
  absl::StatusOr<std::string> claim_for(const std::string& node) const;
  // Whether this is still the folder that was opened. Errors: see FolderGuard.
  absl::Status check_same() const { return guard_.check_same(); }
  absl::Status check_writable(int64_t least_bytes) const { return guard_.check_writable(least_bytes); }
  // Empty before the first controller.
  absl::StatusOr<std::string> cluster() const;
  absl::Status join(const std::string& cluster) const;  // Durable.
  // 0 before the first. `damage`: set when one of its two files is damaged. Errors: both, or the only one: an older
  // leader must not pass.
  absl::StatusOr<int64_t> leader_epoch(std::string* damage = nullptr) const;
  absl::Status write_leader_epoch(int64_t epoch) const;  // Durable.
  std::string run_folder(const AttemptKey& key) const;
  // Where the attempt's ranks write: a folder of their own, where one was made, else the run folder.
  std::string rank_folder(const AttemptKey& key) const;
  absl::StatusOr<std::string> make_rank_folder(const AttemptKey& key, uid_t uid, gid_t gid) const;

  // 0 when the job was never here. A fence that does not hold a number is rebuilt from the run folders, which `damage`
  // tells. Errors: DataLoss when the file cannot be read at all: it lets no attempt of this job pass.
  absl::StatusOr<int> highest_attempt(const std::string& job_uid, std::string* damage = nullptr) const;
  // Durable, unless a newer attempt was here. Gives the highest, this one included. Errors: also those of writing.
  absl::StatusOr<int> raise_fence(const AttemptKey& key, std::string* damage = nullptr) const;

  // Makes the run folder, emptied of an earlier try, with the record.
  absl::Status add(const AttemptRecord& record) const;
  absl::Status save(const AttemptRecord& record) const;
  // Records of all run folders, damaged ones as rebuild_record() makes them again; a folder without a record is left
  // alone.
  std::vector<AttemptRecord> load_all() const;
  // Writes damaged records again as they were rebuilt and says in words what became of each. Errors: those of a folder
  // that cannot be listed.
  absl::StatusOr<std::vector<std::string>> mend_records() const;

  // Removes run folders of forgotten attempts: those older than `age`, then the oldest until all take at most `bytes`.
  void remove_old(absl::Duration age, int64_t bytes) const;
  void remove(const AttemptKey& key) const;
  // Deletes what only a live attempt needs; logs and exit records stay.
  void strip(const AttemptKey& key) const;

 private:
  StateFolder(std::string path, host::Descriptor lock, std::string instance, storage::FolderGuard guard)
      : path_(std::move(path)), lock_(std::move(lock)), instance_(std::move(instance)), guard_(std::move(guard)) {}
  struct Item {
    std::string folder;
    absl::StatusOr<AttemptRecord> record;
    std::string damage;  // What is wrong with its file, and what was done; empty: nothing.
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
  // Between the threads that make and delete run folders.
  std::unique_ptr<sync::Mutex> mutex_ = std::make_unique<sync::Mutex>();
};

// Of the names of its ranks' control groups: daemons of several state folders may share a group above them.
std::string group_prefix(const StateFolder& state);

}  // namespace titan::daemon
