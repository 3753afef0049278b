#include "common/io/hub/folder.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"
#include "common/io/hub/names.h"
#include "common/io/storage/file.h"

namespace titan::hub {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
constexpr size_t kMaxTextLength = size_t{64} << 20;

std::string last_part(const std::string& name) { return name.substr(name.rfind('/') + 1); }

absl::Status failed(int error, const std::string& what, const std::string& path) {
  if (error == ELOOP || error == ENOTDIR)
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is a link, or its parent is not a folder: move it away, or download elsewhere"));
  return errno_status(error, absl::StrCat(what, " ", path));
}

}  // namespace

absl::StatusOr<Folder> Folder::make(const std::string& path) {
  TITAN_RETURN_IF_ERROR(storage::posix_files().make_folders(path));
  host::Descriptor file(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0) return errno_status(errno, absl::StrCat("open ", path));
  return Folder(path, std::move(file));
}

// Opens the folder that contains `name`.
absl::StatusOr<host::Descriptor> Folder::parent(const std::string& name, bool make) const {
  TITAN_RETURN_IF_ERROR(check_file_name(name));
  std::vector<std::string> parts = absl::StrSplit(name, '/');
  parts.pop_back();
  host::Descriptor at(openat(file_.get(), ".", kFolder));
  if (at.get() < 0) return failed(errno, "open", path_);
  for (const std::string& part : parts) {
    if (make && mkdirat(at.get(), part.c_str(), 0777) != 0 && errno != EEXIST)
      return failed(errno, "make the folder of", full(name));
    at = host::Descriptor(openat(at.get(), part.c_str(), kFolder));
    if (at.get() < 0) return failed(errno, "open the folder of", full(name));
  }
  return at;
}

absl::StatusOr<host::Descriptor> Folder::open(const std::string& name, int flags) const {
  TITAN_ASSIGN_OR_RETURN(const host::Descriptor folder, parent(name, (flags & O_CREAT) != 0));
  host::Descriptor file(openat(folder.get(), last_part(name).c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.get() < 0) return failed(errno, "open", full(name));
  return file;
}

absl::StatusOr<std::optional<struct stat>> Folder::find(const std::string& name) const {
  const absl::StatusOr<host::Descriptor> folder = parent(name, false);
  if (absl::IsNotFound(folder.status())) return std::nullopt;
  TITAN_RETURN_IF_ERROR(folder.status());
  struct stat about {};
  if (fstatat(folder->get(), last_part(name).c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return std::nullopt;
    return failed(errno, "look at", full(name));
  }
  if (S_ISREG(about.st_mode)) return about;
  return absl::FailedPreconditionError(
      absl::StrCat(full(name), " is a folder, a link or a device: move it away, or download elsewhere"));
}

absl::Status Folder::rename(const std::string& from, const std::string& to) const {
  TITAN_ASSIGN_OR_RETURN(const host::Descriptor folder, parent(to, false));
  if (renameat(folder.get(), last_part(from).c_str(), folder.get(), last_part(to).c_str()) != 0)
    return failed(errno, "rename to", full(to));
  if (fsync(folder.get()) != 0) return failed(errno, "sync the folder of", full(to));
  return absl::OkStatus();
}

absl::Status Folder::remove(const std::string& name) const {
  const absl::StatusOr<host::Descriptor> folder = parent(name, false);
  if (absl::IsNotFound(folder.status())) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(folder.status());
  if (unlinkat(folder->get(), last_part(name).c_str(), 0) != 0 && errno != ENOENT)
    return failed(errno, "remove", full(name));
  return absl::OkStatus();
}

absl::Status Folder::write(const std::string& name, std::string_view text) const {
  const std::string fresh = name + ".new";
  {
    TITAN_ASSIGN_OR_RETURN(const host::Descriptor file, open(fresh, O_WRONLY | O_CREAT | O_TRUNC));
    TITAN_RETURN_IF_ERROR(host::write_all(file.get(), text, full(fresh)));
  }
  TITAN_ASSIGN_OR_RETURN(const host::Descriptor folder, parent(name, false));
  if (renameat(folder.get(), last_part(fresh).c_str(), folder.get(), last_part(name).c_str()) == 0)
    return absl::OkStatus();
  return failed(errno, "rename to", full(name));
}

absl::StatusOr<std::string> Folder::read(const std::string& name) const {
  TITAN_ASSIGN_OR_RETURN(const host::Descriptor file, open(name, O_RDONLY));
  std::string out, block(65536, '\0');
  for (;;) {
    const ssize_t size = ::read(file.get(), block.data(), block.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return failed(errno, "read", full(name));
    if (size == 0) return out;
    out.append(block, 0, static_cast<size_t>(size));
    if (out.size() > kMaxTextLength) return absl::DataLossError(absl::StrCat(full(name), " is too long"));
  }
}

absl::StatusOr<int64_t> Folder::free_bytes() const {
  struct statvfs about {};
  if (fstatvfs(file_.get(), &about) != 0) return errno_status(errno, absl::StrCat("read the free space of ", path_));
  return static_cast<int64_t>(about.f_bavail) * static_cast<int64_t>(about.f_frsize);
}

}  // namespace titan::hub
