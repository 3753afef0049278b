#include "common/io/data_files/byte_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status/status.h"

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
  std::string_view unused_;  // The part of input_ that is not decompressed yet.
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

namespace {

absl::Status damaged(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what, "; download the file again"));
}

// The cause is usually a file of another kind under this name.
absl::Status not_of_the_format(const std::string& path, const char* format, const char* magic) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": is not ", format, " data (it does not begin with the bytes ",
                                                 magic, "); if it is plain text, remove the ending from its name"));
}

class Gzip final : public Decompressor {
 public:
  explicit Gzip(std::string path) : path_(std::move(path)) {}
  ~Gzip() override { inflateEnd(&stream_); }

  absl::Status start() {
    // 15 + 16 selects a gzip header and the largest window.
    return inflateInit2(&stream_, 15 + 16) == Z_OK ? absl::OkStatus()
                                                   : absl::ResourceExhaustedError("zlib: out of memory");
  }

  absl::StatusOr<size_t> decompress(std::string_view& input, char* out, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size && (full_ || !input.empty())) {
      if (between_members_) TITAN_RETURN_IF_ERROR(pass_padding(input));
      if (input.empty() && !full_) break;
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
      stream_.avail_in = static_cast<uInt>(input.size());
      inside_ |= !input.empty();
      const int code = inflate(&stream_, Z_NO_FLUSH);
      input.remove_prefix(input.size() - stream_.avail_in);
      full_ = stream_.avail_out == 0;
      if (code == Z_STREAM_END) {
        inside_ = full_ = false;  // Another member may follow.
        between_members_ = ended_ = true;
        inflateReset(&stream_);
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        if (!ended_ && stream_.total_out == 0 && absl::NullSafeStringView(stream_.msg) == "incorrect header check") {
          return not_of_the_format(path_, "gzip", "1f 8b");
        }
        const char* why = stream_.msg != nullptr ? stream_.msg : "zlib error";
        return damaged(path_, absl::StrCat("the gzip data is damaged (", why, ")"));
      }
    }
    return size - stream_.avail_out;
  }

  absl::Status at_end() const override {
    return inside_ ? damaged(path_, "the gzip data is cut short") : absl::OkStatus();
  }

  std::unique_ptr<Decompressor> copy() const override {
    auto same = std::make_unique<Gzip>(path_);
    if (inflateCopy(&same->stream_, const_cast<z_stream*>(&stream_)) != Z_OK) return nullptr;
    same->inside_ = inside_;
    same->between_members_ = between_members_;
    same->padded_ = padded_;
    same->ended_ = ended_;
    return same;
  }

 private:
  // Skips zeros at the end of the file, which a tape or a block device may add. The gzip program accepts them too.
  absl::Status pass_padding(std::string_view& input) {
    const size_t zeros = std::min(input.find_first_not_of('\0'), input.size());
    padded_ |= zeros > 0;
    input.remove_prefix(zeros);
    if (input.empty()) return absl::OkStatus();
    between_members_ = false;
    return padded_ ? damaged(path_, "the gzip data is damaged (more data follows its zero padding)") : absl::OkStatus();
  }

  const std::string path_;
  z_stream stream_{};
  bool inside_ = false;                            // A member has begun and not ended.
  bool between_members_ = false, padded_ = false;  // A member has ended and none begun since; zeros followed.
  bool ended_ = false;                             // At least one member has ended.
  bool full_ = false;                              // The output buffer was filled; more output may be pending.
};

// Window of `zstd --long=31`. It takes up to 2 GiB of memory, but only for data that was written with it.
constexpr int kMaxWindow = 31;

class Zstd final : public Decompressor {
 public:
  explicit Zstd(std::string path) : path_(std::move(path)) {
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kMaxWindow);
  }
  ~Zstd() override { ZSTD_freeDStream(stream_); }

  absl::StatusOr<size_t> decompress(std::string_view& input, char* out, size_t size) override {
    ZSTD_outBuffer to{out, size, 0};
    while (to.pos == 0 && (full_ || !input.empty())) {
      ZSTD_inBuffer from{input.data(), input.size(), 0};
      const size_t left = ZSTD_decompressStream(stream_, &to, &from);
      if (ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation) {
        return absl::ResourceExhaustedError(absl::StrCat(path_, ": no memory for the zstd data's window"));
      }
      if (!ended_ && ZSTD_getErrorCode(left) == ZSTD_error_prefix_unknown) {
        return not_of_the_format(path_, "zstd", "28 b5 2f fd");
      }
      if (ZSTD_isError(left)) {
        return damaged(path_, absl::StrCat("the zstd data is damaged (", ZSTD_getErrorName(left), ")"));
      }
      input.remove_prefix(from.pos);
      inside_ = left != 0;  // A frame has begun and not ended.
      ended_ |= !inside_;
      full_ = inside_ && to.pos == size;
    }
    return to.pos;
  }

  absl::Status at_end() const override {
    return inside_ ? damaged(path_, "the zstd data is cut short") : absl::OkStatus();
  }

 private:
  const std::string path_;
  ZSTD_DStream* stream_ = ZSTD_createDStream();
  bool inside_ = false, full_ = false, ended_ = false;  // Same meaning as in Gzip.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Decompressor>> Decompressor::of(const std::string& path) {
  if (absl::EndsWith(path, ".zst")) return std::make_unique<Zstd>(path);
  auto gzip = std::make_unique<Gzip>(path);
  TITAN_RETURN_IF_ERROR(gzip->start());
  return gzip;
}

std::string decompressor_versions() { return absl::StrCat("zlib", zlibVersion(), "-zstd", ZSTD_versionString()); }

}  // namespace titan::data_files
