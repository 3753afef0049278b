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

// A folder into which files of others' names are written. No name leads out of it: every folder below it is opened by
// itself, and no symbolic link is followed. Every error names the path.
class Folder {
 public:
  // Made when it is missing. The folder itself may be a link.
  static absl::StatusOr<Folder> make(const std::string& path);
  const std::string& path() const { return path_; }

  // `flags` as for open(2). With O_CREAT the folders on the way are made, too.
  absl::StatusOr<host::Descriptor> open(const std::string& name, int flags) const;
  // Nothing when there is no such file; FailedPrecondition when something else has the name.
  absl::StatusOr<std::optional<struct stat>> find(const std::string& name) const;
  absl::Status rename(const std::string& from, const std::string& to) const;  // Both in one folder; durable.
  absl::Status remove(const std::string& name) const;                         // Missing is fine.
  // Replaced whole, or not.
  absl::Status write(const std::string& name, std::string_view text) const;
  absl::StatusOr<std::string> read(const std::string& name) const;  // NotFound, or at most 64 MiB.

  absl::StatusOr<int64_t> free_bytes() const;

 private:
  Folder(std::string path, host::Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  absl::StatusOr<host::Descriptor> parent(const std::string& name, bool make) const;
  std::string full(const std::string& name) const { return path_ + "/" + name; }

  std::string path_;
  host::Descriptor file_;
};

}  // namespace titan::hub
