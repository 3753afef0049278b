#include "common/io/data_files/byte_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/status/status.h"
#include "common/io/data_files/decompressor.h"
#include "common/io/data_files/remote_files.h"

namespace titan::data_files {
namespace {

constexpr size_t kInflateChunk = 256 * 1024;

class PlainSource final : public ByteSource {
 public:
  PlainSource(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PlainSource() override { ::close(fd_); }

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    ssize_t got;
    do {
      got = ::read(fd_, buffer, size);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return errno_status(errno, path_);
    return static_cast<size_t>(got);
  }

  absl::Status seek(int64_t offset) {
    return ::lseek(fd_, offset, SEEK_SET) < 0 ? errno_status(errno, path_) : absl::OkStatus();
  }

 private:
  std::string path_;
  int fd_;
};

class CompressedSource final : public ByteSource {
 public:
  CompressedSource(std::unique_ptr<ByteSource> raw, std::unique_ptr<Decompressor> decompressor)
      : raw_(std::move(raw)), decompressor_(std::move(decompressor)), input_(kInflateChunk) {}

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    while (true) {
      TITAN_ASSIGN_OR_RETURN(const size_t got, decompressor_->decompress(unused_, buffer, size));
      if (got > 0) return got;
      TITAN_ASSIGN_OR_RETURN(const size_t filled, raw_->read(input_.data(), input_.size()));
      if (filled == 0) break;
      unused_ = std::string_view(input_.data(), filled);
    }
    TITAN_RETURN_IF_ERROR(decompressor_->at_end());
    return 0;
  }

 private:
  const std::unique_ptr<ByteSource> raw_;
  const std::unique_ptr<Decompressor> decompressor_;
  std::vector<char> input_;
  std::string_view unused_;  // Of input_.
};

absl::StatusOr<std::unique_ptr<ByteSource>> open_on_disk(const std::string& path, int64_t offset) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno_status(errno, path);
  auto plain = std::make_unique<PlainSource>(path, fd);
  TITAN_RETURN_IF_ERROR(plain->seek(offset));
  return plain;
}

}  // namespace

bool is_compressed(const std::string& path) { return absl::EndsWith(path, ".gz") || absl::EndsWith(path, ".zst"); }

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::open(const std::string& path, int64_t offset,
                                                             RemoteFiles* remote) {
  const int64_t first = is_compressed(path) ? 0 : offset;
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> raw,
                         remote != nullptr ? remote->open(path, first) : open_on_disk(path, first));
  if (!is_compressed(path)) return raw;
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<Decompressor> decompressor, Decompressor::of(path));
  auto source = std::make_unique<CompressedSource>(std::move(raw), std::move(decompressor));
  std::vector<char> skipped(offset > 0 ? kInflateChunk : 0);
  while (offset > 0) {
    TITAN_ASSIGN_OR_RETURN(const size_t got,
                           source->read(skipped.data(), static_cast<size_t>(std::min<int64_t>(offset, kInflateChunk))));
    if (got == 0) break;
    offset -= static_cast<int64_t>(got);
  }
  return source;
}

}  // namespace titan::data_files
