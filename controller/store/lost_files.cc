// A store whose file somebody has deleted or replaced while it was open.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/status.h"
#include "controller/store/connection.h"

namespace titan::store {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 5;
constexpr auto kSettle = std::chrono::milliseconds(200);

absl::Status write_durably(const std::string& path, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(errno, absl::StrCat("create ", path));
  int failed = 0;
  for (size_t done = 0; failed == 0 && done < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n >= 0) done += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) failed = errno;
  }
  if (failed == 0 && ::fsync(fd) != 0) failed = errno;
  ::close(fd);
  if (failed != 0) return errno_status(failed, absl::StrCat("write ", path));
  const int folder = ::open(fs::path(path).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0 || ::fsync(folder) != 0) failed = errno;
  if (folder >= 0) ::close(folder);
  return failed == 0 ? absl::OkStatus() : errno_status(failed, absl::StrCat("sync the folder of ", path));
}

// A process that is still deleting the folder may delete the new file as well, so the write is checked and repeated.
absl::Status write_to_stay(const std::string& path, const std::string& bytes) {
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    std::error_code ignored;
    const fs::path folder = fs::path(path).parent_path();
    if (fs::create_directories(folder, ignored)) (void)::chmod(folder.c_str(), 0700);
    status = write_durably(path, bytes);
    std::this_thread::sleep_for(kSettle);
    if (status.ok() && ::access(path.c_str(), F_OK) == 0) return status;
    if (status.ok()) status = absl::UnavailableError(absl::StrCat(path, " is deleted again and again"));
  }
  return status;
}

}  // namespace

absl::Status SqliteStore::lost_files() const {
  if (!guard_) return absl::OkStatus();
  const absl::Status same = guard_->check_same();
  return absl::IsFailedPrecondition(same) ? absl::InternalError(absl::StrCat("store: ", same.message()))
                                          : absl::OkStatus();  // What cannot be looked at now may be there.
}

void SqliteStore::check_files() {
  if (const absl::Status lost = lost_files(); !lost.ok()) writer_->fail(lost);
}

absl::StatusOr<StoreImage> SqliteStore::image() const {
  sync::Lock lock(read_mutex_);
  return image_of(read_->database.get());
}

// Writes what was acknowledged to where it can be found, and says where. The open descriptors still have all of it.
// Never under the store's own name: what lies there now is somebody's.
std::string SqliteStore::rescue() {
  const absl::StatusOr<StoreImage> image = image_of(write_->database.get());
  const std::string copy = absl::StrCat(path_, kRescued, absl::ToUnixSeconds(absl::Now()));
  absl::Status status = image.status();
  if (status.ok()) status = write_to_stay(copy, image->bytes);
  if (!status.ok()) return absl::StrCat("; what it held could not be saved: ", status.message());
  return absl::StrCat("; all that was acknowledged (revision ", image->info.revision, ") was saved to ", copy,
                      ": to go on with it, name it ", path_, " and start the controller again");
}

}  // namespace titan::store
