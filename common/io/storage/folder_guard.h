#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::storage {

// Watches the folder in which a daemon keeps its durable state. A daemon holds its files open, so its writes do not
// fail when somebody deletes or replaces the files, but what it writes afterwards is lost when it ends. Thread-safe;
// every call may block as long as the disk does.
class FolderGuard {
 public:
  // Remembers the folder and those of `files` in it that exist. Errors: those of stat(2) on the folder.
  static absl::StatusOr<FolderGuard> open(const std::string& folder, const std::vector<std::string>& files);

  // Checks that the remembered paths still name the same files. Errors: FailedPrecondition when a path is gone or names
  // another file, which only a restart can fix unless the old files are moved back; those of the disk when it cannot be
  // determined.
  absl::Status check_same() const;
  // Writes the small file `.probe` there. Errors: ResourceExhausted when fewer than `least_bytes` or no inodes are
  // left, or the disk's own; each names the folder.
  absl::Status check_writable(int64_t least_bytes) const;

  const std::string& folder() const { return folder_; }

 private:
  struct File {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
  };

  explicit FolderGuard(std::string folder) : folder_(std::move(folder)) {}

  std::string folder_;
  std::vector<File> files_;  // The folder is first.
};

}  // namespace titan::storage
