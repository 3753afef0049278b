#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"

namespace titan::hub {

// A folder for files with untrusted names. No name leads out of it: each folder below is opened separately, and
// symbolic links are not followed. Every error names the path.
class Folder {
 public:
  // Opens the folder, which is created when missing. The folder itself may be a link.
  static absl::StatusOr<Folder> make(const std::string& path);
  const std::string& path() const { return path_; }

  // Opens a file with `flags` of open(2). O_CREAT also creates the folders on the way.
  absl::StatusOr<host::Descriptor> open(const std::string& name, int flags) const;
  // Returns nothing when there is no such file; FailedPrecondition when it is not a regular file.
  absl::StatusOr<std::optional<struct stat>> find(const std::string& name) const;
  absl::Status rename(const std::string& from, const std::string& to) const;  // Both in one folder; durable.
  absl::Status remove(const std::string& name) const;                         // OK when it is missing.
  // Replaces the file atomically, without syncing it to the disk.
  absl::Status write(const std::string& name, std::string_view text) const;
  absl::StatusOr<std::string> read(const std::string& name) const;  // NotFound; DataLoss beyond 64 MiB.

  absl::StatusOr<int64_t> free_bytes() const;

 private:
  Folder(std::string path, host::Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  absl::StatusOr<host::Descriptor> parent(const std::string& name, bool make) const;
  std::string full(const std::string& name) const { return path_ + "/" + name; }

  std::string path_;
  host::Descriptor file_;
};

}  // namespace titan::hub
