#include "common/io/storage/direct_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/file.h"

namespace titan::storage {
namespace {

constexpr size_t kBlock = 4096;  // Alignment of memory, offsets and lengths that every disk with O_DIRECT accepts.

absl::Status failure_of(int error, const char* operation, const std::string& path) {
  return errno_status(error, absl::StrCat(operation, " ", path));
}

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, Free>;

class DirectFile : public WritableFile {
 public:
  DirectFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  ~DirectFile() override {
    while (!under_way_.empty()) take_oldest();
    if (fd_ >= 0) ::close(fd_);
  }

  absl::Status append(std::string_view bytes) override {
    while (!bytes.empty()) {
      TITAN_RETURN_IF_ERROR(failed_);
      if (filling_ == nullptr) filling_ = empty_buffer();
      if (filling_ == nullptr) return failed_ = absl::ResourceExhaustedError("no memory to write " + path_);
      const size_t count = std::min(bytes.size(), static_cast<size_t>(kDirectBufferBytes) - filled_);
      std::memcpy(filling_.get() + filled_, bytes.data(), count);
      filled_ += count;
      bytes.remove_prefix(count);
      if (filled_ == static_cast<size_t>(kDirectBufferBytes)) send();
    }
    return failed_;
  }

  absl::Status sync() override {
    const size_t tail = filled_ % kBlock;
    const Buffer rest = std::move(filling_);
    while (!under_way_.empty()) take_oldest();
    if (failed_.ok() && filled_ > tail) failed_ = write(rest.get(), filled_ - tail, written_);
    if (failed_.ok() && tail > 0) failed_ = write_tail(rest.get() + filled_ - tail, tail);
    written_ += static_cast<int64_t>(filled_);
    filled_ = 0;
    // Fewer bytes may have been appended than were allocated.
    if (failed_.ok() && ::ftruncate(fd_, written_) != 0) failed_ = failure_of(errno, "truncate", path_);
    if (failed_.ok() && ::fdatasync(fd_) != 0) failed_ = failure_of(errno, "fsync", path_);
    return failed_;
  }

  absl::Status close() override {
    if (filled_ > 0 || !under_way_.empty()) TITAN_RETURN_IF_ERROR(sync());
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) return failure_of(errno, "close", path_);
    return failed_;
  }

 private:
  struct UnderWay {
    Buffer buffer;
    std::future<absl::Status> done;
  };

  Buffer empty_buffer() {
    if (static_cast<int>(under_way_.size()) + 1 >= kDirectBuffers) take_oldest();
    if (spare_.empty()) return Buffer(static_cast<char*>(std::aligned_alloc(kBlock, kDirectBufferBytes)));
    Buffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }

  void send() {
    UnderWay& one = under_way_.emplace_back(UnderWay{std::move(filling_), {}});
    one.done = std::async(std::launch::async, [this, from = one.buffer.get(), at = written_] {
      return write(from, static_cast<size_t>(kDirectBufferBytes), at);
    });
    written_ += kDirectBufferBytes;
    filled_ = 0;
  }

  void take_oldest() {
    absl::Status status = under_way_.front().done.get();
    if (failed_.ok()) failed_ = std::move(status);
    spare_.push_back(std::move(under_way_.front().buffer));
    under_way_.pop_front();
  }

  // Called on any thread.
  absl::Status write(const char* from, size_t count, int64_t at) {
    bool refused = false;
    while (count > 0) {
      const ssize_t done = ::pwrite(fd_, from, count, at);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EINVAL && !std::exchange(refused, true)) {
        set_direct(fd_, false);  // Unless another thread did.
        continue;
      }
      if (done < 0) return failure_of(errno, "write", path_);
      from += done;
      at += done;
      count -= static_cast<size_t>(done);
    }
    return absl::OkStatus();
  }

  absl::Status write_tail(const char* from, size_t count) {
    set_direct(fd_, false);
    return write(from, count, written_ + static_cast<int64_t>(filled_ - count));
  }

 public:
  // Sets or clears O_DIRECT. Returns false when it was already so, or cannot be changed.
  static bool set_direct(int fd, bool direct) {
    const int flags = ::fcntl(fd, F_GETFL);
    const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
    return flags >= 0 && wanted != flags && ::fcntl(fd, F_SETFL, wanted) == 0;
  }

 private:
  int fd_;
  const std::string path_;
  Buffer filling_;
  size_t filled_ = 0;
  int64_t written_ = 0;  // File offset of `filling_`.
  std::deque<UnderWay> under_way_;
  std::vector<Buffer> spare_;
  absl::Status failed_;  // The first error, which all later calls return.
};

bool on_local_disk(int fd) {
  struct statfs info;
  if (::fstatfs(fd, &info) != 0) return false;
  return info.f_type == EXT4_SUPER_MAGIC || info.f_type == XFS_SUPER_MAGIC;
}

// Allocates `bytes` for the file. Where allocation is not supported, the writes report a full disk. Does not try a size
// that cannot fit, because meanwhile other writers would find the disk full.
absl::Status allocate_space(int fd, const std::string& path, int64_t bytes) {
  struct statfs info;
  if (::fstatfs(fd, &info) == 0 && bytes / info.f_bsize > static_cast<int64_t>(info.f_bfree)) {
    return failure_of(ENOSPC, "allocate", path);
  }
  int result;
  do {
    result = ::fallocate(fd, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || (errno != ENOSPC && errno != EDQUOT)) return absl::OkStatus();
  return failure_of(errno, "allocate", path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> write_directly(int fd, const std::string& path, int64_t bytes) {
  if (!on_local_disk(fd) || !DirectFile::set_direct(fd, true)) return nullptr;
  auto file = std::make_unique<DirectFile>(fd, path);
  TITAN_RETURN_IF_ERROR(allocate_space(fd, path, bytes));
  return file;
}

absl::StatusOr<std::unique_ptr<WritableFile>> create_large(Files& files, const std::string& path, int64_t bytes) {
  auto* writer = dynamic_cast<LargeWriter*>(&files);
  return writer != nullptr ? writer->create_large(path, bytes) : files.create(path);
}

}  // namespace titan::storage
