#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

// A support bundle while it is put together: files in a folder that only its user can read, then one archive of them.
class DebugBundle {
 public:
  // `name`: of the folder in the archive. Errors: those of the folder for temporary files.
  static absl::StatusOr<DebugBundle> begin(const std::string& name);
  DebugBundle(DebugBundle&& other) noexcept;
  DebugBundle& operator=(DebugBundle&&) = delete;
  ~DebugBundle();  // Deletes the folder.

  // `path`: below the folder, as "jobs/a/events.jsonl". What cannot be written is missing.
  void add(const std::string& path, const std::string& text);
  void add(const std::string& path, const nlohmann::ordered_json& document) { add(path, document.dump(2) + "\n"); }
  // Notes what is not there, and why.
  void miss(const std::string& what, const absl::Status& why);
  const std::vector<std::string>& missing() const { return missing_; }

  // Writes the archive, a tar file compressed with gzip, that only its user can read: whole, or not there. Errors:
  // AlreadyExists; those of the disk; NotFound without the program tar.
  absl::Status pack(const std::string& file);

 private:
  DebugBundle(std::string root, std::string name) : root_(std::move(root)), name_(std::move(name)) {}

  std::string root_;  // Empty: moved away.
  std::string name_;
  std::vector<std::string> missing_;
};

}  // namespace titan::cli
