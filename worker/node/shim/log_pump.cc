#include "worker/node/shim/log_pump.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace titan::shim {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
constexpr size_t kTailBytes = 4096;
constexpr int kDrainRounds = 64;  // 16 MiB: more than a pipe can hold, and a limit if a grandchild keeps printing.

// Removes colours and other control characters, because the text is shown in tables and records.
std::string plain(const std::string& line) {
  std::string result;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < '@' || line[i] > '~')) ++i;
    } else if (static_cast<unsigned char>(line[i]) >= ' ' || line[i] == '\t') {
      result += line[i];
    }
  }
  return result;
}

std::string last_line(const std::string& tail) {
  const size_t end = tail.find_last_not_of("\r\n \t");
  if (end == std::string::npos) return "";
  const size_t before = tail.rfind('\n', end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return plain(tail.substr(begin, end + 1 - begin));
}

}  // namespace

struct LogPump::Stream {
  Stream(int rank_number, host::Descriptor read_end, LogWriter writer)
      : rank(rank_number), fd(read_end.get()), pipe(std::move(read_end)), log(std::move(writer)) {}
  const int rank;
  const int fd;
  std::atomic<bool> open = true;
  sync::Mutex mutex;
  host::Descriptor pipe TITAN_GUARDED_BY(mutex);
  LogWriter log TITAN_GUARDED_BY(mutex);
  std::string tail TITAN_GUARDED_BY(mutex);
};

LogPump::LogPump() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { run(); }) {}

LogPump::~LogPump() {
  stopping_ = true;
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
  thread_.join();
  for (const std::shared_ptr<Stream>& stream : streams_) pump(*stream, kDrainRounds);
}

void LogPump::add(int rank, host::Descriptor pipe, LogWriter log) {
  {
    sync::Lock lock(mutex_);
    streams_.push_back(std::make_shared<Stream>(rank, std::move(pipe), std::move(log)));
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

// Reads until the pipe is empty, for at most `rounds` reads. Returns false at the end of the stream.
bool LogPump::pump(Stream& stream, int rounds) {
  thread_local std::vector<char> buffer(kBufferBytes);
  sync::Lock lock(stream.mutex);
  while (stream.pipe && rounds-- > 0) {
    const ssize_t n = ::read(stream.pipe.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) {
      stream.open = false;
      return false;
    }
    const auto size = static_cast<size_t>(n);
    stream.log.append(buffer.data(), size);
    stream.tail.append(buffer.data() + size - std::min(size, kTailBytes), std::min(size, kTailBytes));
    if (stream.tail.size() > kTailBytes) stream.tail.erase(0, stream.tail.size() - kTailBytes);
  }
  return true;
}

std::string LogPump::finish(int rank) {
  std::shared_ptr<Stream> found;
  {
    sync::Lock lock(mutex_);
    for (const std::shared_ptr<Stream>& stream : streams_) {
      if (stream->rank == rank) found = stream;
    }
  }
  if (found == nullptr) return "";
  pump(*found, kDrainRounds);
  sync::Lock lock(found->mutex);
  return last_line(found->tail);
}

LogPump::Counts LogPump::counts() const {
  Counts counts;
  sync::Lock lock(mutex_);
  for (const std::shared_ptr<Stream>& stream : streams_) {
    sync::Lock stream_lock(stream->mutex);
    counts.dropped_bytes += stream->log.dropped_bytes();
    counts.lost_bytes += stream->log.lost_bytes();
  }
  return counts;
}

void LogPump::run() {
  while (!stopping_) {
    std::vector<std::shared_ptr<Stream>> streams;
    {
      sync::Lock lock(mutex_);
      streams = streams_;
    }
    std::erase_if(streams, [](const std::shared_ptr<Stream>& stream) { return !stream->open; });
    std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
    for (const std::shared_ptr<Stream>& stream : streams) waits.push_back({stream->fd, POLLIN, 0});
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    uint64_t ignored = 0;
    if (waits[0].revents != 0) (void)!::read(wake_.get(), &ignored, sizeof(ignored));
    for (size_t i = 0; i < streams.size(); ++i) {
      // Only a few rounds each, so that one rank's flood does not delay the others' lines.
      if (waits[i + 1].revents != 0) pump(*streams[i], 4);
    }
  }
}

}  // namespace titan::shim
