#include "common/io/storage/folder_guard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::storage {
namespace {

constexpr size_t kProbeBytes = 4096;  // One block: a file system without space accepts an empty file.

absl::Status check_space(const std::string& folder, int64_t least_bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return errno_status(errno, absl::StrCat("look at ", folder));
  if ((disk.f_flag & ST_RDONLY) != 0) return errno_status(EROFS, absl::StrCat("write in ", folder));
  const auto free = static_cast<int64_t>(disk.f_frsize) * static_cast<int64_t>(disk.f_bavail);
  if (free < least_bytes)
    return absl::ResourceExhaustedError(absl::StrCat("the disk of ", folder, " is full: ", free >> 10,
                                                     " KiB left, at least ", least_bytes >> 10, " KiB are needed"));
  if (disk.f_files > 0 && disk.f_favail == 0)  // Some file systems make inodes on demand, and report none.
    return absl::ResourceExhaustedError(absl::StrCat("the disk of ", folder, " is full: no inode is left"));
  return absl::OkStatus();
}

// Truncates and rewrites the file each time, so that the disk has to allocate a block. Never removes it, so that a
// listing of the folder does not change between two checks.
absl::Status write_probe(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(errno, absl::StrCat("create ", path));
  const std::vector<char> zeros(kProbeBytes, 0);
  const ssize_t written = ::write(fd, zeros.data(), zeros.size());
  const int failed = written < 0 ? errno : written < static_cast<ssize_t>(zeros.size()) ? ENOSPC : 0;
  const int not_closed = ::close(fd) == 0 ? 0 : errno;  // Some network file systems report quotas here.
  const int error = failed != 0 ? failed : not_closed;
  return error == 0 ? absl::OkStatus() : errno_status(error, absl::StrCat("write ", path));
}

}  // namespace

absl::StatusOr<FolderGuard> FolderGuard::open(const std::string& folder, const std::vector<std::string>& files) {
  FolderGuard guard(folder);
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0) return errno_status(errno, absl::StrCat("look at ", folder));
  guard.files_.push_back({folder, found.st_dev, found.st_ino});
  for (const std::string& name : files) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (::stat(path.c_str(), &found) == 0) guard.files_.push_back({path, found.st_dev, found.st_ino});
  }
  return guard;
}

absl::Status FolderGuard::check_same() const {
  for (const File& file : files_) {
    struct stat found {};
    const bool there = ::stat(file.path.c_str(), &found) == 0;
    if (!there && errno != ENOENT && errno != ENOTDIR) return errno_status(errno, absl::StrCat("look at ", file.path));
    if (there && found.st_dev == file.device && found.st_ino == file.inode) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(file.path, there ? " was replaced" : " was deleted or moved away", " while it was in use"));
  }
  return absl::OkStatus();
}

absl::Status FolderGuard::check_writable(int64_t least_bytes) const {
  if (absl::Status space = check_space(folder_, least_bytes); !space.ok()) return space;
  return write_probe(absl::StrCat(folder_, "/.probe"));
}

}  // namespace titan::storage
