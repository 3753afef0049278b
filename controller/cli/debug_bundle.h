#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

// A support bundle while it is put together: files in a folder that only its user can read, then one archive of them.
class DebugBundle {
 public:
  // `name`: of the folder in the archive. Errors: those of the folder for temporary files.
  static absl::StatusOr<std::unique_ptr<DebugBundle>> begin(const std::string& name);
  DebugBundle(const DebugBundle&) = delete;
  DebugBundle& operator=(const DebugBundle&) = delete;
  ~DebugBundle() { abandon(); }

  // `path`: below the folder, as "jobs/a/events.jsonl". What cannot be written is an error of pack().
  void add(const std::string& path, const std::string& text);
  void add(const std::string& path, const nlohmann::ordered_json& document) { add(path, document.dump(2) + "\n"); }
  // Notes what is not there, and why.
  void miss(const std::string& what, const absl::Status& why);
  const std::vector<std::string>& missing() const { return missing_; }

  // Writes the archive, a tar file compressed with gzip, that only its user can read: whole, or not there. Errors:
  // AlreadyExists; those of the disk, of add() too; NotFound without the program tar.
  absl::Status pack(const std::string& file);

  // Deletes the folder, after which nothing is added or packed; from any thread.
  void abandon();

 private:
  DebugBundle(std::string root, std::string name) : root_(std::move(root)), name_(std::move(name)) {}

  const std::string root_, name_;
  std::vector<std::string> missing_;
  sync::Mutex mutex_;  // Of the folder and of what follows.
  bool abandoned_ TITAN_GUARDED_BY(mutex_) = false;
  absl::Status written_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::cli
