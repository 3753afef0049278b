#include "worker/data/byte_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/remote_files.h"

namespace titan::data {
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

// What both compressed formats need: a window of compressed bytes.
class CompressedSource : public ByteSource {
 public:
  explicit CompressedSource(std::string path, std::unique_ptr<ByteSource> raw)
      : path_(std::move(path)), raw_(std::move(raw)), input_(kInflateChunk) {}

 protected:
  // More compressed bytes when all of them are used; false at the end of the file.
  absl::StatusOr<bool> refill(size_t used) {
    if (used < filled_) return true;
    TITAN_ASSIGN_OR_RETURN(filled_, raw_->read(input_.data(), input_.size()));
    fresh_ = true;
    return filled_ > 0;
  }
  absl::Status damaged(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what, "; fetch the file again"));
  }

  std::string path_;
  std::unique_ptr<ByteSource> raw_;
  std::vector<char> input_;
  size_t filled_ = 0;
  bool fresh_ = false;  // refill() put new bytes at the start of input_.
};

class GzipSource final : public CompressedSource {
 public:
  using CompressedSource::CompressedSource;
  ~GzipSource() override { inflateEnd(&stream_); }

  absl::Status start() {
    // 15 + 16: a gzip header, the largest window.
    return inflateInit2(&stream_, 15 + 16) == Z_OK ? absl::OkStatus()
                                                   : absl::ResourceExhaustedError("zlib: out of memory");
  }

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size) {
      TITAN_ASSIGN_OR_RETURN(const bool more, refill(filled_ - stream_.avail_in));
      if (!more) return inside_ ? damaged("the gzip data is cut short") : absl::StatusOr<size_t>(0);
      if (fresh_) {
        stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
        stream_.avail_in = static_cast<uInt>(filled_);
        fresh_ = false;
      }
      inside_ = true;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        inside_ = false;  // Another member may follow.
        inflateReset(&stream_);
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return damaged(
            absl::StrCat("the gzip data is damaged (", stream_.msg != nullptr ? stream_.msg : "zlib error", ")"));
      }
    }
    return size - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool inside_ = false;  // A member has begun and not ended.
};

class ZstdSource final : public CompressedSource {
 public:
  using CompressedSource::CompressedSource;
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    ZSTD_outBuffer out{buffer, size, 0};
    while (out.pos == 0) {
      TITAN_ASSIGN_OR_RETURN(const bool more, refill(in_.pos));
      if (!more) return inside_ ? damaged("the zstd data is cut short") : absl::StatusOr<size_t>(0);
      if (fresh_) {
        in_ = {input_.data(), filled_, 0};
        fresh_ = false;
      }
      const size_t left = ZSTD_decompressStream(stream_, &out, &in_);
      if (ZSTD_isError(left)) return damaged(absl::StrCat("the zstd data is damaged (", ZSTD_getErrorName(left), ")"));
      inside_ = left != 0;
    }
    return out.pos;
  }

 private:
  ZSTD_DStream* stream_ = ZSTD_createDStream();
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_ = false;
};

absl::StatusOr<std::unique_ptr<ByteSource>> open_on_disk(const std::string& path, int64_t offset) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno_status(errno, path);
  auto plain = std::make_unique<PlainSource>(path, fd);
  TITAN_RETURN_IF_ERROR(plain->seek(offset));
  return plain;
}

absl::StatusOr<std::unique_ptr<ByteSource>> decoder(const std::string& path, std::unique_ptr<ByteSource> raw) {
  if (absl::EndsWith(path, ".zst")) return std::make_unique<ZstdSource>(path, std::move(raw));
  auto gzip = std::make_unique<GzipSource>(path, std::move(raw));
  TITAN_RETURN_IF_ERROR(gzip->start());
  return gzip;
}

}  // namespace

bool is_compressed(const std::string& path) { return absl::EndsWith(path, ".gz") || absl::EndsWith(path, ".zst"); }

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::open(const std::string& path, int64_t offset,
                                                             RemoteFiles* remote) {
  const int64_t first = is_compressed(path) ? 0 : offset;
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> raw,
                         remote != nullptr ? remote->open(path, first) : open_on_disk(path, first));
  if (!is_compressed(path)) return raw;
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> source, decoder(path, std::move(raw)));
  std::vector<char> skipped(kInflateChunk);
  while (offset > 0) {
    TITAN_ASSIGN_OR_RETURN(const size_t got,
                           source->read(skipped.data(), static_cast<size_t>(std::min<int64_t>(offset, kInflateChunk))));
    if (got == 0) break;
    offset -= static_cast<int64_t>(got);
  }
  return source;
}

}  // namespace titan::data
