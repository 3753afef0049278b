#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/shim/files.h"

namespace titan::daemon {

struct AttemptKey {
  std::string job_uid;
  int number = 0;
  friend auto operator<=>(const AttemptKey&, const AttemptKey&) = default;  // NOLINT(modernize-use-nullptr): misread
};

// What the daemon must know of an attempt after its own restart: attempt.json in the run folder.
struct AttemptRecord {
  AttemptKey key;
  bool leader = false;
  std::vector<int> ranks;  // Of this node, in local order.
  std::string dump_folder;
  std::string token;
  std::string folder_id;  // Of the dump folder: what the controller knows, then on the leader what is there.
  double orphan_timeout_seconds = 600;
  std::vector<int> devices;  // Indices that this attempt's ranks use.
  enum class Phase { kPreparing, kLive, kEnded, kRefused, kForgotten };
  Phase phase = Phase::kPreparing;
  std::string error_reason;
  std::string error_message;
};

// {state}/
//   daemon.lock              one daemon per folder
//   instance                 random id of this folder
//   cluster                  id of the cluster that this worker belongs to, from its first controller
//   jobs/{uid}/fence         highest attempt that was ever prepared here
//   jobs/{uid}/attempt-{n}/  run folder: attempt.json, offsets.json, launch.json, and what shim and ranks write
class StateFolder {
 public:
  // Creates what is missing. Errors: AlreadyExists when another daemon holds the folder.
  static absl::StatusOr<StateFolder> open(const std::string& path);

  const std::string& instance() const { return instance_; }
  // Empty before the first controller.
  const std::string& cluster() const { return cluster_; }
  absl::Status join(const std::string& cluster);  // Durable.
  std::string run_folder(const AttemptKey& key) const;

  // 0 when the job was never here. Errors: those of reading; a fence that cannot be read lets nobody pass.
  absl::StatusOr<int> highest_attempt(const std::string& job_uid) const;
  absl::Status raise_fence(const AttemptKey& key) const;  // Durable.

  // Makes the run folder, emptied of an earlier try, with the record.
  absl::Status add(const AttemptRecord& record) const;
  absl::Status save(const AttemptRecord& record) const;
  // Records of all run folders; folders without a readable record are left alone.
  std::vector<AttemptRecord> load_all() const;
  // DataLoss naming the first record that is there and cannot be read.
  absl::Status check_records() const;

  // Removes run folders of forgotten attempts: those older than `age`, then the oldest until all take at most `bytes`.
  void remove_old(absl::Duration age, int64_t bytes) const;
  // Deletes what only a live attempt needs; logs and exit records stay.
  void strip(const AttemptKey& key) const;

 private:
  StateFolder(std::string path, shim::Descriptor lock, std::string instance, std::string cluster)
      : path_(std::move(path)), lock_(std::move(lock)), instance_(std::move(instance)), cluster_(std::move(cluster)) {}
  std::vector<std::pair<std::string, absl::StatusOr<AttemptRecord>>> read_all() const;

  std::string path_;
  shim::Descriptor lock_;
  std::string instance_;
  std::string cluster_;
};

// Job uids become folder names: letters, digits, '-', '_' and '.', not starting with '.'.
bool valid_uid(const std::string& uid);

}  // namespace titan::daemon
