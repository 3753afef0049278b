#include "common/rank_protocol/rank_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::rank_protocol {
namespace {

absl::StatusOr<void*> map_new(absl::string_view what, int fd, const std::string& path, size_t bytes) {
  // Reserves the blocks now: a full disk fails here instead of raising SIGBUS at a later store.
  if (const int failed = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)); failed != 0) {
    return errno_status(failed, absl::StrCat("create ", what, " ", path));
  }
  void* const page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return errno_status(errno, absl::StrCat("map ", what, " ", path));
  return page;
}

}  // namespace

absl::StatusOr<void*> create_page_file(absl::string_view what, const std::string& path, size_t bytes,
                                       absl::FunctionRef<void(void* page)> set_up) {
  const std::string fresh = absl::StrCat(path, ".new");
  const int fd = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return errno_status(errno, absl::StrCat("create ", what, " ", path));
  const absl::Cleanup close_it = [fd] { ::close(fd); };
  absl::Cleanup remove_it = [&fresh] { ::unlink(fresh.c_str()); };
  TITAN_ASSIGN_OR_RETURN(void* const page, map_new(what, fd, path, bytes));
  set_up(page);
  // Readers open the page by its name, so they see everything written before the rename.
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const int failed = errno;
    ::munmap(page, bytes);
    return errno_status(failed, absl::StrCat("create ", what, " ", path));
  }
  std::move(remove_it).Cancel();
  return page;
}

absl::StatusOr<int> open_rank_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return errno_status(errno, absl::StrCat("open ", path));
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink <= 1) return fd;
  ::close(fd);
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file with one name: remove it"));
}

absl::StatusOr<std::string> read_rank_file(const std::string& path, size_t most) {
  TITAN_ASSIGN_OR_RETURN(const int fd, open_rank_file(path, O_RDONLY));
  std::string text(most, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  const int error = errno;
  ::close(fd);
  if (got < 0) return errno_status(error, absl::StrCat("read ", path));
  text.resize(static_cast<size_t>(got));
  return text;
}

}  // namespace titan::rank_protocol
