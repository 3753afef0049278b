#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/time/clock.h"
#include "common/base/host/descriptor.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"
#include "common/io/storage/direct_file.h"
#include "common/io/storage/file.h"

namespace titan::storage {
namespace {

absl::Status failed(const char* operation, const std::string& path) {
  return errno_status(errno, absl::StrCat(operation, " ", path));
}

// O_NONBLOCK in `flags` avoids waiting for the other end of a pipe, and has no effect on a regular file.
host::Descriptor open_file(const std::string& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);  // The umask removes permissions.
  } while (fd < 0 && errno == EINTR);
  return host::Descriptor(fd);
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(host::Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status append(std::string_view bytes) override { return host::write_all(fd_.get(), bytes, path_); }

  absl::Status sync() override {
    if (::fdatasync(fd_.get()) != 0) return failed("fsync", path_);
    return absl::OkStatus();
  }

  absl::Status close() override {
    const int fd = fd_.release();
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) return failed("close", path_);
    return absl::OkStatus();
  }

 private:
  host::Descriptor fd_;
  std::string path_;
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(host::Descriptor fd, int64_t size, std::string path)
      : fd_(std::move(fd)), size_(size), path_(std::move(path)) {}

  int64_t size() const override { return size_; }

  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t got = ::pread(fd_.get(), out + done, static_cast<size_t>(bytes - done), offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed("read", path_);
      if (got == 0) {
        return absl::DataLossError(
            absl::StrCat("read ", path_, ": ends at byte ", offset + done, ", but is needed up to ", offset + bytes));
      }
      done += got;
    }
    return absl::OkStatus();
  }

 private:
  host::Descriptor fd_;
  int64_t size_;
  std::string path_;
};

class PosixFileLock : public FileLock {
 public:
  explicit PosixFileLock(host::Descriptor fd) : fd_(std::move(fd)) {}

 private:
  host::Descriptor fd_;  // Closing the open file description drops its flock.
};

absl::StatusOr<std::unique_ptr<FileLock>> flock_path(const std::string& path, int open_flags, int operation) {
  host::Descriptor fd = open_file(path, open_flags);
  if (fd.get() < 0) return failed("open", path);
  int result;
  do {
    result = ::flock(fd.get(), operation | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return failed("lock", path);
  return std::make_unique<PosixFileLock>(std::move(fd));
}

int flock_operation(LockMode mode) { return mode == LockMode::kShared ? LOCK_SH : LOCK_EX; }

class PosixFiles : public Files, public LargeWriter {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    return writable(path, O_WRONLY | O_CREAT | O_EXCL, "create");
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> create_large(const std::string& path, int64_t bytes) override {
    if (bytes < kLargeBytes) return create(path);
    host::Descriptor fd = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
    if (fd.get() < 0) return failed("create", path);
    auto file = write_directly(fd.get(), path, bytes);
    if (!file.ok() || *file != nullptr) fd.release();
    if (!file.ok()) ::unlink(path.c_str());  // Leaves no file, like any other failure to create it.
    if (!file.ok() || *file != nullptr) return file;
    return std::make_unique<PosixWritableFile>(std::move(fd), path);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> append_to(const std::string& path) override {
    return writable(path, O_WRONLY | O_CREAT | O_APPEND, "open");
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    return readable(path, O_RDONLY);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> open_no_link(const std::string& path) override {
    return readable(path, O_RDONLY | O_NOFOLLOW);
  }

  absl::StatusOr<absl::Time> touch(const std::string& path) override {
    host::Descriptor fd = open_file(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
    if (fd.get() < 0) return failed("open", path);
    if (::futimens(fd.get(), nullptr) != 0) return failed("touch", path);
    return time_of(fd, path);
  }

  absl::StatusOr<absl::Time> modified(const std::string& path) override {
    host::Descriptor fd = open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd.get() < 0) return failed("open", path);
    return time_of(fd, path);
  }

  absl::Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return failed("rename", absl::StrCat(from, " to ", to));
    return absl::OkStatus();
  }

  absl::Status truncate(const std::string& path, int64_t bytes) override {
    if (::truncate(path.c_str(), bytes) != 0) return failed("truncate", path);
    return absl::OkStatus();
  }

  absl::Status remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return failed("remove", path);
    return absl::OkStatus();
  }

  absl::Status remove_folder(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return errno_status(error.value(), absl::StrCat("remove folder ", path));
    return absl::OkStatus();
  }

  absl::Status make_folders(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return errno_status(error.value(), absl::StrCat("create folder ", path));
    return absl::OkStatus();
  }

  absl::Status sync_folder(const std::string& path) override {
    host::Descriptor fd = open_file(path, O_RDONLY | O_DIRECTORY);
    if (fd.get() < 0) return failed("open", path);
    if (::fsync(fd.get()) != 0) return failed("fsync", path);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> list(const std::string& folder) override {
    DIR* stream = ::opendir(folder.c_str());
    if (stream == nullptr) return failed("list", folder);
    std::vector<std::string> names;
    errno = 0;
    for (const dirent* entry; (entry = ::readdir(stream)) != nullptr;) {
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
    }
    const int error = errno;
    ::closedir(stream);
    if (error != 0) return errno_status(error, absl::StrCat("list ", folder));
    std::sort(names.begin(), names.end());
    return names;
  }

  bool exists(const std::string& path) override {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0;
  }

  bool is_folder(const std::string& path) override {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }

  // Polls instead of waiting in flock(2): a holder that was stopped in the middle must cause a clear error, not a
  // silent hang.
  absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path, LockMode mode,
                                                 absl::Duration timeout) override {
    absl::Duration waited, pause = absl::Microseconds(200);
    while (true) {
      // Follows no link: in users' folders, a link could make root create or lock a file anywhere.
      auto lock = flock_path(path, O_RDWR | O_CREAT | O_NOFOLLOW, flock_operation(mode));
      if (lock.ok() || !absl::IsUnavailable(lock.status())) return lock;
      if (waited >= timeout) {
        return absl::UnavailableError(absl::StrCat("lock ", path, ": held by another process for ",
                                                   absl::FormatDuration(waited), "; `fuser ", path,
                                                   "` names it: end it if it is a paused old attempt"));
      }
      absl::SleepFor(pause);
      waited += pause;
      pause = std::min(2 * pause, absl::Milliseconds(20));
    }
  }

  absl::StatusOr<std::unique_ptr<FileLock>> try_lock(const std::string& path, LockMode mode) override {
    return flock_path(path, O_RDONLY, flock_operation(mode));
  }

 private:
  absl::StatusOr<std::unique_ptr<WritableFile>> writable(const std::string& path, int flags, const char* operation) {
    host::Descriptor fd = open_file(path, flags);
    if (fd.get() < 0) return failed(operation, path);
    return std::make_unique<PosixWritableFile>(std::move(fd), path);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> readable(const std::string& path, int flags) {
    host::Descriptor fd = open_file(path, flags | O_NONBLOCK);
    if (fd.get() < 0) return failed("open", path);
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return failed("stat", path);
    if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat("open ", path, ": not a regular file"));
    return std::make_unique<PosixReadableFile>(std::move(fd), info.st_size, path);
  }

  static absl::StatusOr<absl::Time> time_of(const host::Descriptor& fd, const std::string& path) {
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return failed("stat", path);
    return absl::TimeFromTimespec(info.st_mtim);
  }
};

}  // namespace

Files& posix_files() {
  static auto* files = new PosixFiles;
  return *files;
}

}  // namespace titan::storage
