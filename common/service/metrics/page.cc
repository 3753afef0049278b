#include "common/service/metrics/page.h"

#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/service/metrics/listener.h"

namespace titan::metrics {
namespace {

constexpr size_t kPlaces = 128;

int milliseconds_until(absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return -1;
  return static_cast<int>(
      absl::ToInt64Milliseconds(absl::Ceil(std::max(deadline - now, absl::ZeroDuration()), absl::Milliseconds(1))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Page>> Page::open(const std::string& address, std::function<std::string()> text) {
  const absl::StatusOr<Listener> listener = listen_at(address);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<Page>(new Page(listener->socket, listener->port, std::move(text)));
}

Page::Page(int listener, int port, std::function<std::string()> text)
    : listener_(listener), port_(port), text_(std::move(text)), wake_(::eventfd(0, EFD_CLOEXEC)), thread_([this] {
        serve();
      }) {}

Page::~Page() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  thread_.join();
  ::close(wake_);
  ::close(listener_);
}

// Somebody who has asked is left alone for as long as anybody has not.
void Page::make_place() {
  const auto idle = std::find_if(visitors_.begin(), visitors_.end(), [](const Visitor& v) { return !v.has_asked(); });
  visitors_.erase(idle != visitors_.end() ? idle : visitors_.begin());
}

void Page::welcome(absl::Time now) {
  while (true) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    const bool no_descriptor = socket < 0 && (errno == EMFILE || errno == ENFILE);
    if (no_descriptor && !visitors_.empty()) {
      make_place();
      continue;
    }
    if (no_descriptor) absl::SleepFor(absl::Milliseconds(100));  // Others hold them all; poll would return at once.
    if (socket < 0) return;
    if (visitors_.size() == kPlaces) make_place();
    Visitor& visitor = visitors_.emplace_back(socket, now);
    // Most have asked by now, and then cannot be pushed out by those who come after.
    if (!visitor.go_on(now, text_)) visitors_.pop_back();
  }
}

void Page::serve() {
  while (true) {
    std::vector<pollfd> waiting = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    absl::Time first = absl::InfiniteFuture();
    for (const Visitor& visitor : visitors_) {
      waiting.push_back({visitor.socket(), static_cast<short>(visitor.sends() ? POLLOUT : POLLIN), 0});
      first = std::min(first, visitor.deadline());
    }
    if (::poll(waiting.data(), waiting.size(), milliseconds_until(first, absl::Now())) < 0 && errno != EINTR) return;
    if (waiting[0].revents != 0) return;
    const absl::Time now = absl::Now();
    size_t at = 2;
    for (auto visitor = visitors_.begin(); visitor != visitors_.end(); ++at) {
      const bool stays = waiting[at].revents != 0 ? visitor->go_on(now, text_) : now < visitor->deadline();
      visitor = stays && now < visitor->deadline() ? std::next(visitor) : visitors_.erase(visitor);
    }
    if (waiting[1].revents != 0) welcome(now);
  }
}

absl::StatusOr<std::string> read_page(const std::string& host, int port, absl::Duration patience) {
  httplib::Client client(host, port);
  const auto seconds = static_cast<time_t>(absl::ToInt64Seconds(absl::Ceil(patience, absl::Seconds(1))));
  client.set_connection_timeout(seconds);
  client.set_read_timeout(seconds);
  client.set_write_timeout(seconds);
  const httplib::Result page = client.Get("/metrics");
  const std::string where = absl::StrCat("http://", host, ":", port, "/metrics");
  if (!page) return absl::UnavailableError(absl::StrCat(where, ": ", httplib::to_string(page.error())));
  if (page->status != 200) return absl::UnavailableError(absl::StrCat(where, ": HTTP status ", page->status));
  return page->body;
}

}  // namespace titan::metrics
