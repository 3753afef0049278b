#include "common/service/systemd/service.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace titan::systemd {
namespace {

constexpr absl::Duration kMaxNotifyInterval = absl::Seconds(1);

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

int startup_exit_code(const absl::Status& status) { return absl::IsInvalidArgument(status) ? 2 : 1; }

Notifier::Options Notifier::from_environment() {
  Options options;
  options.socket = variable("NOTIFY_SOCKET");
  int64_t microseconds = 0;
  int64_t pid = 0;
  const bool for_us = !absl::SimpleAtoi(variable("WATCHDOG_PID"), &pid) || pid == ::getpid();
  if (for_us && absl::SimpleAtoi(variable("WATCHDOG_USEC"), &microseconds) && microseconds > 0)
    options.watchdog = absl::Microseconds(microseconds);
  return options;
}

Notifier::Notifier(Options options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}

void Notifier::ready() { send("READY=1"); }

void Notifier::stopping() { send("STOPPING=1"); }

void Notifier::status(const std::string& text) {
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');  // Each line of a message is an assignment.
  {
    const sync::Lock lock(mutex_);
    if (line == status_) return;
    status_ = line;
  }
  send(absl::StrCat("STATUS=", line));
}

void Notifier::alive() {
  if (options_.watchdog == absl::InfiniteDuration()) return;
  {
    const sync::Lock lock(mutex_);
    const absl::Duration now = clock_.monotonic();
    if (now - alive_at_ < options_.watchdog / 4) return;
    alive_at_ = now;
  }
  send("WATCHDOG=1");
}

absl::Duration Notifier::pace() const {
  if (options_.socket.empty()) return absl::InfiniteDuration();
  return std::min(kMaxNotifyInterval, options_.watchdog / 4);
}

void Notifier::send(const std::string& text) const {
  if (options_.socket.empty()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(options_.socket.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, options_.socket.data(), length);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // '@' denotes the abstract namespace.
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  (void)::sendto(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
  ::close(fd);
}

}  // namespace titan::systemd
