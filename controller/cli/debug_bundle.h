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

// Builds a support bundle: files in a folder that only its user can read, then one archive of them.
class DebugBundle {
 public:
  // `name`: name of the folder in the archive. Errors: those of the folder for temporary files.
  static absl::StatusOr<std::unique_ptr<DebugBundle>> begin(const std::string& name);
  DebugBundle(const DebugBundle&) = delete;
  DebugBundle& operator=(const DebugBundle&) = delete;
  ~DebugBundle() { abandon(); }

  // `path`: relative to the folder, such as "jobs/a/events.jsonl". pack() reports what could not be written.
  void add(const std::string& path, const std::string& text);
  void add(const std::string& path, const nlohmann::ordered_json& document) { add(path, document.dump(2) + "\n"); }
  // Notes what is missing, and why.
  void miss(const std::string& what, const absl::Status& why);
  const std::vector<std::string>& missing() const { return missing_; }

  // Writes the archive, a tar file compressed with gzip that only its user can read; it appears only when it is whole.
  // Errors: AlreadyExists; those of the disk, also of add(); NotFound without the program tar.
  absl::Status pack(const std::string& file);

  // Deletes the folder, after which nothing is added or packed; may be called from any thread.
  void abandon();

 private:
  DebugBundle(std::string root, std::string name) : root_(std::move(root)), name_(std::move(name)) {}

  const std::string root_, name_;
  std::vector<std::string> missing_;
  sync::Mutex mutex_;  // Guards the folder and the members below.
  bool abandoned_ TITAN_GUARDED_BY(mutex_) = false;
  absl::Status written_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::cli
