#include "common/service/metrics/page.h"

#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/text/host_port.h"

namespace titan::metrics {
namespace {

constexpr int kBacklog = 512;  // Above a burst of connections; beyond it the kernel makes clients wait.

// Returns a listening socket, or -1 with errno.
int listen_one(const addrinfo& at) {
  const int socket = ::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket, at.ai_addr, at.ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0) return socket;
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

int port_of(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  const in_port_t port = at.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                                                  : reinterpret_cast<const sockaddr_in&>(at).sin_port;
  return ntohs(port);
}

absl::Status cannot(const std::string& address, const char* why) {
  return absl::UnavailableError(
      absl::StrCat("cannot serve metrics on ", address, ": ", why,
                   "; choose another one with --metrics-address and --metrics-port (0: any)"));
}

}  // namespace

absl::StatusOr<Listener> listen_at(const std::string& address) {
  const std::optional<HostPort> where = split_host_port(address);
  if (!where) return absl::InvalidArgumentError(absl::StrCat("metrics address '", address, "': it must be HOST:PORT"));
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  if (::getaddrinfo(where->host.c_str(), absl::StrCat(where->port).c_str(), &wanted, &found) != 0)
    return cannot(address, "no such host");
  const absl::Cleanup free_them = [found] { ::freeaddrinfo(found); };
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (const int socket = listen_one(*at); socket >= 0) return Listener{socket, port_of(socket)};
  }
  return cannot(address, std::strerror(errno));
}

namespace {

// Limit for the whole request, so that sending a byte now and then does not keep a connection open.
constexpr absl::Duration kRequestTimeout = absl::Seconds(1);
constexpr absl::Duration kSendTimeout = absl::Seconds(10);  // Longest time without a byte sent.
constexpr absl::Duration kDrainTimeout = absl::Seconds(1);
constexpr size_t kMaxRequestLength = 8 << 10;
constexpr char kExposition[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kPlain[] = "text/plain; charset=utf-8";

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

bool is_whole(const std::string& request) {
  return absl::StrContains(request, "\r\n\r\n") || absl::StrContains(request, "\n\n");
}

std::string response(absl::string_view status, absl::string_view type, const std::string& body, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
                      "\r\nConnection: close\r\n\r\n", with_body ? body : "");
}

std::string answer_to(const std::string& request, const std::function<std::string()>& page) {
  if (!is_whole(request)) return response("431 Request Header Fields Too Large", kPlain, "too long\n", true);
  const absl::string_view line = absl::string_view(request).substr(0, request.find_first_of("\r\n"));
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/"))
    return response("400 Bad Request", kPlain, "this is not HTTP\n", true);
  const bool is_head = words[0] == "HEAD";
  const absl::string_view path = words[1].substr(0, words[1].find('?'));
  if ((words[0] != "GET" && !is_head) || path != "/metrics")
    return response("404 Not Found", kPlain, "the metrics are at /metrics\n", !is_head);
  return response("200 OK", kExposition, page(), !is_head);
}

}  // namespace

HttpConnection::HttpConnection(int socket, absl::Time now) : socket_(socket), deadline_(now + kRequestTimeout) {}

HttpConnection::~HttpConnection() { ::close(socket_); }

bool HttpConnection::advance(absl::Time now, const std::function<std::string()>& page) {
  switch (phase_) {
    case Phase::kRequest:
      return read_request(now, page);
    case Phase::kAnswer:
      return send_answer(now);
    case Phase::kDraining:
      return drain();
  }
  return false;
}

bool HttpConnection::read_request(absl::Time now, const std::function<std::string()>& page) {
  std::array<char, 4096> bytes;
  const ssize_t read = ::recv(socket_, bytes.data(), bytes.size(), 0);
  if (read < 0) return would_wait();
  if (read == 0) return false;
  request_.append(bytes.data(), static_cast<size_t>(read));
  if (!is_whole(request_) && request_.size() <= kMaxRequestLength) return true;
  answer_ = answer_to(request_, page);
  phase_ = Phase::kAnswer;
  deadline_ = now + kSendTimeout;
  return send_answer(now);
}

bool HttpConnection::send_answer(absl::Time now) {
  while (sent_ < answer_.size()) {
    const ssize_t sent = ::send(socket_, answer_.data() + sent_, answer_.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) return would_wait();
    sent_ += static_cast<size_t>(sent);
    deadline_ = now + kSendTimeout;
  }
  ::shutdown(socket_, SHUT_WR);
  phase_ = Phase::kDraining;
  deadline_ = now + kDrainTimeout;
  return true;
}

bool HttpConnection::drain() {
  std::array<char, 4096> bytes;
  const ssize_t read = ::recv(socket_, bytes.data(), bytes.size(), 0);
  return read > 0 || (read < 0 && would_wait());
}

namespace {

constexpr size_t kMaxConnections = 128;

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

// Evicts the oldest connection without a whole request, or the oldest of all if every one has sent its request.
void Page::evict_connection() {
  const auto idle =
      std::find_if(connections_.begin(), connections_.end(), [](const HttpConnection& v) { return !v.has_request(); });
  connections_.erase(idle != connections_.end() ? idle : connections_.begin());
}

void Page::accept_connections(absl::Time now) {
  while (true) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    const bool no_descriptor = socket < 0 && (errno == EMFILE || errno == ENFILE);
    if (no_descriptor && !connections_.empty()) {
      evict_connection();
      continue;
    }
    if (no_descriptor)
      absl::SleepFor(absl::Milliseconds(100));  // Other parts of the process hold all descriptors;
                                                // poll() would return at once.
    if (socket < 0) return;
    if (connections_.size() == kMaxConnections) evict_connection();
    HttpConnection& visitor = connections_.emplace_back(socket, now);
    // Most requests have already arrived, and a connection with a whole request is evicted last.
    if (!visitor.advance(now, text_)) connections_.pop_back();
  }
}

void Page::serve() {
  while (true) {
    std::vector<pollfd> waiting = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    absl::Time first = absl::InfiniteFuture();
    for (const HttpConnection& visitor : connections_) {
      waiting.push_back({visitor.socket(), static_cast<short>(visitor.sends() ? POLLOUT : POLLIN), 0});
      first = std::min(first, visitor.deadline());
    }
    if (::poll(waiting.data(), waiting.size(), milliseconds_until(first, absl::Now())) < 0 && errno != EINTR) return;
    if (waiting[0].revents != 0) return;
    const absl::Time now = absl::Now();
    size_t at = 2;
    for (auto visitor = connections_.begin(); visitor != connections_.end(); ++at) {
      const bool stays = waiting[at].revents != 0 ? visitor->advance(now, text_) : now < visitor->deadline();
      visitor = stays && now < visitor->deadline() ? std::next(visitor) : connections_.erase(visitor);
    }
    if (waiting[1].revents != 0) accept_connections(now);
  }
}

absl::StatusOr<std::string> read_page(const std::string& host, int port, absl::Duration timeout) {
  httplib::Client client(host, port);
  const auto seconds = static_cast<time_t>(absl::ToInt64Seconds(absl::Ceil(timeout, absl::Seconds(1))));
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
