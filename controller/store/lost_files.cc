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
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"
#include "common/io/storage/file.h"
#include "controller/store/connection.h"

namespace titan::store {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 5;
constexpr auto kSettle = std::chrono::milliseconds(200);

absl::Status write_durably(const std::string& path, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(errno, absl::StrCat("create ", path));
  absl::Status status = host::write_all(fd, bytes, path);
  if (status.ok() && ::fsync(fd) != 0) status = errno_status(errno, absl::StrCat("write ", path));
  ::close(fd);
  return status.ok() ? storage::posix_files().sync_folder(fs::path(path).parent_path().string()) : status;
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
  return absl::StrCat("; the original was moved away or deleted. All that was acknowledged (revision ",
                      image->info.revision, ") was saved to ", copy, ": to go on with it, name it ", path_,
                      " and start the controller again. An original that returns is of the same revision at most, and "
                      "older once a controller has gone on with the copy");
}

}  // namespace titan::store
