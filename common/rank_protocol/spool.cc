#include "common/rank_protocol/spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/rank_protocol/rank_files.h"

namespace titan::rank_protocol {
namespace {

constexpr std::string_view kPrefix = "{\"seq\":";
constexpr size_t kMaxPrefixLength = 32;  // More than the prefix with any number and the comma after it.
constexpr int64_t kTailStep = 64 << 10;
constexpr int64_t kMaxSkippedLength = 256 << 20;

// Returns the number of an event line; 0: not an event. Only SpoolWriter makes these lines, so their start is fixed and
// no JSON parser is needed.
int64_t sequence_of(std::string_view line, bool whole = true) {
  if (line.substr(0, kPrefix.size()) != kPrefix || (whole && line.back() != '}')) return 0;
  int64_t sequence = 0;
  const char* const end = line.data() + line.size();
  const auto [after, error] = std::from_chars(line.data() + kPrefix.size(), end, sequence);
  return error == std::errc() && after != end && *after == ',' && sequence > 0 ? sequence : 0;
}

absl::Status not_an_event(const std::string& path, int64_t offset) {
  return absl::DataLossError(absl::StrCat("spool ", path, ": the line at byte ", offset, " is not a numbered event"));
}

int64_t unix_nanos() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Reads [offset, offset + size), or up to the end of the file.
absl::StatusOr<std::string> read_range(int fd, int64_t offset, int64_t size, const std::string& path) {
  std::string bytes(static_cast<size_t>(size), '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + got, bytes.size() - got, offset + static_cast<int64_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(errno, absl::StrCat("read ", path));
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  bytes.resize(got);
  return bytes;
}

std::string too_long(int64_t sequence, int64_t bytes) {
  return absl::StrCat("{\"seq\":", sequence, ",\"kind\":\"event_too_long\",\"bytes\":", bytes, "}");
}

void skip(SpoolBatch& batch, int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  const bool follows = !batch.damage.empty() && batch.damage.back().offset + batch.damage.back().bytes == offset;
  if (follows) {
    batch.damage.back().bytes += bytes;
  } else {
    batch.damage.push_back({offset, bytes});
  }
}

// Returns where the last event in a line begins: a torn event, or junk without a newline, may precede it on the same
// line. The prefix does not occur inside an event: quotes in a text are escaped, and no nested object begins with
// "seq". npos: no event.
size_t event_in(std::string_view line) {
  size_t at = line.rfind(kPrefix);
  while (at != std::string_view::npos && sequence_of(line.substr(at)) == 0) {
    at = at == 0 ? std::string_view::npos : line.rfind(kPrefix, at - 1);
  }
  return at;
}

// Skips the start of the line at `offset`: `bytes` is not an event and has no newline. The damage reaches up to where
// an event may begin.
SpoolBatch skip_junk(SpoolBatch batch, int64_t offset, std::string_view bytes) {
  size_t at = bytes.rfind(kPrefix);
  while (at != std::string_view::npos && sequence_of(bytes.substr(at), /*whole=*/false) == 0) {
    at = at == 0 ? std::string_view::npos : bytes.rfind(kPrefix, at - 1);
  }
  if (at == std::string_view::npos) at = bytes.size() - kMaxPrefixLength;
  skip(batch, offset, static_cast<int64_t>(at));
  batch.next_offset = offset + static_cast<int64_t>(at);
  return batch;
}

// Handles the line at `offset` that begins with `bytes` and has no newline in them. Returns no line while its newline
// is missing.
absl::StatusOr<SpoolBatch> skip_long_line(int fd, int64_t offset, int64_t size, std::string_view bytes,
                                          const std::string& path, SpoolBatch batch) {
  const int64_t sequence = sequence_of(bytes, /*whole=*/false);
  if (sequence == 0) return skip_junk(std::move(batch), offset, bytes);
  // A huge sparse file costs nothing to make, so this does not read all of it.
  const int64_t last = size - offset > kMaxSkippedLength ? offset + kMaxSkippedLength : size;
  for (int64_t at = offset + static_cast<int64_t>(bytes.size()); at < last; at += kTailStep) {
    TITAN_ASSIGN_OR_RETURN(const std::string piece, read_range(fd, at, std::min(kTailStep, size - at), path));
    const size_t end = piece.find('\n');
    if (end == std::string::npos) continue;
    const int64_t stop = at + static_cast<int64_t>(end);
    batch.next_offset = stop + 1;
    batch.lines.push_back({sequence, too_long(sequence, stop - offset), stop + 1});
    return batch;
  }
  if (last == size) return batch;  // The line is still being written.
  skip(batch, offset, last - offset);
  batch.next_offset = last;
  return batch;
}

struct Tail {
  int64_t size = 0;  // Bytes up to and including the last newline.
  int64_t last_sequence = 0;
};

// Finds the last whole line, reading backwards in growing steps.
absl::StatusOr<Tail> find_tail(int fd, int64_t file_size, const std::string& path) {
  for (int64_t want = kTailStep;; want *= 4) {
    const int64_t from = std::max<int64_t>(0, file_size - want);
    TITAN_ASSIGN_OR_RETURN(const std::string bytes, read_range(fd, from, file_size - from, path));
    const size_t end = bytes.rfind('\n');
    const size_t before = end == std::string::npos || end == 0 ? std::string::npos : bytes.rfind('\n', end - 1);
    if (from > 0 && before == std::string::npos) continue;  // The last whole line starts before these bytes.
    if (end == std::string::npos) return Tail{};
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    const int64_t sequence = sequence_of(std::string_view(bytes).substr(begin, end - begin));
    if (sequence == 0) {
      return not_an_event(path, from + static_cast<int64_t>(begin));
    }
    return Tail{from + static_cast<int64_t>(end) + 1, sequence};
  }
}

}  // namespace

struct SpoolWriter::State {
  ~State() { ::close(fd); }
  sync::Mutex mutex;
  int fd = -1;
  int64_t next = 1;
  int64_t size = 0;   // Bytes of whole lines.
  bool torn = false;  // Bytes of a failed append may follow them.
  std::string path;
};

SpoolWriter::SpoolWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SpoolWriter::SpoolWriter(SpoolWriter&& other) noexcept = default;
SpoolWriter& SpoolWriter::operator=(SpoolWriter&& other) noexcept = default;
SpoolWriter::~SpoolWriter() = default;

absl::StatusOr<SpoolWriter> SpoolWriter::open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (state->fd < 0) return errno_status(errno, absl::StrCat("open spool ", path));
  struct stat info {};
  if (::fstat(state->fd, &info) != 0) return errno_status(errno, absl::StrCat("open spool ", path));
  TITAN_ASSIGN_OR_RETURN(const Tail tail, find_tail(state->fd, info.st_size, path));
  if (tail.size != info.st_size && ::ftruncate(state->fd, tail.size) != 0) {
    return errno_status(errno, absl::StrCat("cut the torn end of spool ", path));
  }
  state->size = tail.size;
  state->next = tail.last_sequence + 1;
  return SpoolWriter(std::move(state));
}

absl::Status SpoolWriter::append(const char* kind, nlohmann::json members) {
  if (members.is_null()) members = nlohmann::json::object();
  if (!members.is_object() || members.contains("seq") || members.contains("time") || members.contains("kind")) {
    return absl::InvalidArgumentError(
        absl::StrCat("event ", kind, ": members must be an object without seq, time and kind"));
  }
  const std::string rest = members.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  State& state = *state_;
  sync::Lock lock(state.mutex);
  if (state.torn) {
    if (::ftruncate(state.fd, state.size) != 0) return errno_status(errno, absl::StrCat("repair spool ", state.path));
    state.torn = false;
  }
  const std::string line = absl::StrCat("{\"seq\":", state.next, ",\"time\":", unix_nanos(), ",\"kind\":\"", kind, "\"",
                                        members.empty() ? "" : ",", rest.substr(1), "\n");
  ssize_t written = 0;
  do {
    written = ::write(state.fd, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(line.size())) {
    const int failed = written < 0 ? errno : ENOSPC;  // A short write to a file means that the disk is full.
    state.torn = written > 0 && ::ftruncate(state.fd, state.size) != 0;
    return errno_status(failed, absl::StrCat("append to spool ", state.path));
  }
  state.size += written;
  ++state.next;
  return absl::OkStatus();
}

absl::StatusOr<SpoolBatch> read_spool(const std::string& path, int64_t offset, int64_t max_bytes) {
  TITAN_ASSIGN_OR_RETURN(const int fd, open_rank_file(path, O_RDONLY));
  const struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_status(errno, absl::StrCat("read spool ", path));
  SpoolBatch batch;
  batch.was_cut = offset < 0 || offset > info.st_size;
  if (batch.was_cut) offset = 0;
  batch.next_offset = offset;
  std::string bytes;
  size_t end = std::string::npos;
  for (int64_t want = std::max<int64_t>(max_bytes, 1);; want *= 4) {
    TITAN_ASSIGN_OR_RETURN(bytes, read_range(fd, offset, std::min(want, info.st_size - offset), path));
    end = bytes.rfind('\n');
    if (end != std::string::npos) break;
    if (want >= info.st_size - offset) return batch;  // The rest is empty or a torn line.
    if (want > kMaxLineLength) return skip_long_line(fd, offset, info.st_size, bytes, path, std::move(batch));
  }
  for (size_t begin = 0; begin <= end;) {
    const size_t stop = bytes.find('\n', begin);
    const int64_t at = offset + static_cast<int64_t>(begin);
    SpoolLine line;
    line.end_offset = offset + static_cast<int64_t>(stop) + 1;
    batch.next_offset = line.end_offset;
    const std::string_view whole = std::string_view(bytes).substr(begin, stop - begin);
    begin = stop + 1;
    const size_t event = event_in(whole);
    if (event == std::string_view::npos) {
      skip(batch, at, line.end_offset - at);
      continue;
    }
    skip(batch, at, static_cast<int64_t>(event));
    line.json = whole.substr(event);
    line.sequence = sequence_of(line.json);
    const auto length = static_cast<int64_t>(line.json.size());
    if (length > kMaxLineLength) line.json = too_long(line.sequence, length);
    batch.lines.push_back(std::move(line));
  }
  return batch;
}

std::string spool_path(const std::string& run_folder, int rank) {
  return absl::StrCat(run_folder, "/rank-", rank, ".events.jsonl");
}
std::string beacon_path(const std::string& run_folder, int rank) {
  return absl::StrCat(run_folder, "/rank-", rank, ".beacon");
}
std::string flight_tail_path(const std::string& run_folder, int rank) {
  return absl::StrCat(run_folder, "/rank-", rank, ".flight");
}
std::string stacks_path(const std::string& run_folder, int rank) {
  return absl::StrCat(run_folder, "/rank-", rank, ".stacks");
}
std::string log_path(const std::string& run_folder, int rank) {
  return absl::StrCat(run_folder, "/rank-", rank, ".log");
}
std::string trace_path(const std::string& run_folder, int rank, uint64_t request) {
  return absl::StrFormat("%s/rank-%d.trace-%016x.json", run_folder, rank, request);
}

}  // namespace titan::rank_protocol
