#include "worker/node/shim/log_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::shim {
namespace {

constexpr int kDigits = 20;
constexpr int64_t kMinSegment = 4096;

struct Segment {
  int64_t start = 0;
  int64_t size = 0;
  std::string path;
};

std::string rotated_path(const std::string& path, int64_t start) {
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof(digits), "%020lld", static_cast<long long>(start));
  return absl::StrCat(path, ".", digits);
}

// Returns the rotated segments, oldest first.
std::vector<Segment> rotated(const std::string& path) {
  std::vector<Segment> segments;
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  const std::string prefix = path.substr(slash == std::string::npos ? 0 : slash + 1) + ".";
  DIR* const handle = ::opendir(folder.c_str());
  if (handle == nullptr) return segments;
  while (const dirent* const item = ::readdir(handle)) {
    const std::string name = item->d_name;
    if (name.size() != prefix.size() + kDigits || name.compare(0, prefix.size(), prefix) != 0) continue;
    Segment segment{std::atoll(name.c_str() + prefix.size()), 0, absl::StrCat(folder, "/", name)};
    struct stat info {};
    if (::stat(segment.path.c_str(), &info) != 0) continue;  // It was deleted just now.
    segment.size = info.st_size;
    segments.push_back(std::move(segment));
  }
  ::closedir(handle);
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) { return a.start < b.start; });
  return segments;
}

int64_t end_of(const std::vector<Segment>& segments) {
  return segments.empty() ? 0 : segments.back().start + segments.back().size;
}

// One consistent list of all segments, the live one last. If the writer rotates meanwhile, the list is read again.
struct Look {
  std::vector<Segment> segments;
  host::Descriptor live;
};

absl::StatusOr<Look> look(const std::string& path) {
  for (int tries = 0;; ++tries) {
    Look result;
    result.segments = rotated(path);
    result.live = host::Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!result.live && errno != ENOENT) return errno_status(errno, absl::StrCat("open ", path));
    const std::vector<Segment> after = rotated(path);
    const bool same = end_of(after) == end_of(result.segments);
    if (!same && tries < 100) continue;
    if (!result.live && result.segments.empty()) return absl::NotFoundError(absl::StrCat("no log ", path));
    struct stat info {};
    if (result.live && ::fstat(result.live.get(), &info) == 0) {
      result.segments.push_back({end_of(result.segments), info.st_size, path});
    }
    return result;
  }
}

// Appends at most `limit` bytes of a segment from a stream offset.
void read_segment(const Segment& segment, int fd, int64_t offset, int64_t limit, std::string& out) {
  const int64_t want = std::min(limit, segment.start + segment.size - offset);
  if (want <= 0) return;
  const size_t before = out.size();
  out.resize(before + static_cast<size_t>(want));
  size_t got = 0;
  while (got < static_cast<size_t>(want)) {
    const ssize_t n = ::pread(fd, out.data() + before + got, static_cast<size_t>(want) - got,
                              offset - segment.start + static_cast<int64_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  out.resize(before + got);
}

// Reads the stream from `offset`. If a segment is deleted meanwhile, restarts at the oldest kept byte.
LogChunk read_from(const Look& at, int64_t offset, int64_t max_bytes) {
  LogChunk chunk;
  const int64_t oldest = at.segments.empty() ? 0 : at.segments.front().start;
  const int64_t end = end_of(at.segments);
  chunk.dropped_bytes = oldest;
  chunk.offset = std::clamp(offset, oldest, std::max(oldest, end));
  for (const Segment& segment : at.segments) {
    const int64_t next = chunk.offset + static_cast<int64_t>(chunk.data.size());
    if (next >= segment.start + segment.size) continue;
    const bool is_live = &segment == &at.segments.back() && at.live;
    const host::Descriptor opened(is_live ? -1 : ::open(segment.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!is_live && !opened) {  // Deleted meanwhile: continue after it.
      chunk.data.clear();
      chunk.offset = chunk.dropped_bytes = segment.start + segment.size;
      continue;
    }
    read_segment(segment, is_live ? at.live.get() : opened.get(), next,
                 max_bytes - static_cast<int64_t>(chunk.data.size()), chunk.data);
    if (static_cast<int64_t>(chunk.data.size()) >= max_bytes) break;
  }
  chunk.end = chunk.offset + static_cast<int64_t>(chunk.data.size()) >= end;
  return chunk;
}

}  // namespace

LogWriter::LogWriter(std::string path, int64_t max_bytes, host::Descriptor fd)
    : path_(std::move(path)),
      max_bytes_(max_bytes),
      segment_bytes_(std::max(kMinSegment, max_bytes / 4)),
      fd_(std::move(fd)),
      rotate_at_(segment_bytes_) {}

absl::StatusOr<LogWriter> LogWriter::open(const std::string& path, int64_t max_bytes) {
  host::Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) return errno_status(errno, absl::StrCat("open ", path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_status(errno, absl::StrCat("open ", path));
  LogWriter writer(path, max_bytes, std::move(fd));
  writer.start_ = end_of(rotated(path));
  writer.size_ = info.st_size;
  return writer;
}

void LogWriter::append(const char* data, size_t size) {
  if (unreported_ > 0) {
    const std::string note =
        absl::StrCat("\n[titan: ", unreported_, " bytes of log lost: no space left on the disk]\n");
    if (write_some(note.data(), note.size())) unreported_ = 0;
  }
  while (size > 0) {
    const int64_t space = rotate_at_ - size_;
    if (space <= 0) {
      rotate();
      continue;
    }
    const size_t part = std::min(size, static_cast<size_t>(space));
    if (!write_some(data, part)) return;
    data += part;
    size -= part;
  }
}

// Returns true if all bytes were written; the rest is counted as lost.
bool LogWriter::write_some(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = fd_ ? ::write(fd_.get(), data, size) : -1;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (errno == ENOSPC && drop_oldest()) continue;
      lost_ += static_cast<int64_t>(size);
      unreported_ += static_cast<int64_t>(size);
      return false;
    }
    data += n;
    size -= static_cast<size_t>(n);
    size_ += n;
  }
  return true;
}

void LogWriter::rotate() {
  if (::rename(path_.c_str(), rotated_path(path_, start_).c_str()) != 0) {
    rotate_at_ += segment_bytes_;  // Keep writing to this file and try again one segment later.
    return;
  }
  rotate_at_ = segment_bytes_;
  start_ += size_;
  size_ = 0;
  fd_ = host::Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  std::vector<Segment> segments = rotated(path_);
  int64_t kept = segment_bytes_;
  for (const Segment& segment : segments) kept += segment.size;
  // Keep the newest rotated segment, because its name gives the offset of rank-R.log.
  for (size_t i = 0; kept > max_bytes_ && i + 1 < segments.size(); ++i) {
    if (::unlink(segments[i].path.c_str()) == 0) dropped_ += segments[i].size;
    kept -= segments[i].size;
  }
}

bool LogWriter::drop_oldest() {
  const std::vector<Segment> segments = rotated(path_);
  if (segments.size() < 2 || ::unlink(segments.front().path.c_str()) != 0) return false;
  dropped_ += segments.front().size;
  return true;
}

absl::StatusOr<LogChunk> read_log(const std::string& path, int64_t offset, int64_t tail_lines, int64_t max_bytes) {
  TITAN_ASSIGN_OR_RETURN(const Look at, look(path));
  max_bytes = std::max<int64_t>(1, max_bytes);
  if (offset >= 0) return read_from(at, offset, max_bytes);
  LogChunk chunk = read_from(at, std::max<int64_t>(0, end_of(at.segments) - max_bytes), max_bytes);
  // Skip back over one more line end than requested lines, not counting the one at the very end.
  size_t begin = chunk.data.size();
  if (begin > 0 && chunk.data.back() == '\n') --begin;
  for (int64_t lines = 0; lines < tail_lines && begin != std::string::npos && begin > 0; ++lines) {
    begin = chunk.data.rfind('\n', begin - 1);
  }
  const size_t cut = tail_lines <= 0 ? chunk.data.size() : begin == std::string::npos || begin == 0 ? 0 : begin + 1;
  chunk.data.erase(0, cut);
  chunk.offset += static_cast<int64_t>(cut);
  return chunk;
}

}  // namespace titan::shim
