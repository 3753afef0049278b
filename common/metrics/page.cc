#include "common/metrics/page.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::metrics {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(5);  // With one visitor, from its connection to its last byte.
constexpr auto kPauseWhenOutOfDescriptors = std::chrono::milliseconds(20);
constexpr size_t kMostVisitors = 16;
constexpr size_t kLongestRequest = 8192;
constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr char kExposition[] = "text/plain; version=0.0.4; charset=utf-8";

std::string response(const std::string& status, const char* type, const std::string& body, bool with_body = true) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
                      "\r\nConnection: close\r\n\r\n", with_body ? body : "");
}

struct Endpoint {
  std::string host, port;
};

absl::StatusOr<Endpoint> split(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("metrics address '", address, "': it must be HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return Endpoint{host, absl::StrCat(port)};
}

// A listening socket, or -1 with errno.
int listen_on(const addrinfo& place) {
  const int fd = socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, place.ai_addr, place.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int port_of(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

struct Page::Visitor {
  explicit Visitor(int socket) : fd(socket) {}
  ~Visitor() { close(fd); }

  const int fd;
  const Clock::time_point deadline = Clock::now() + kPatience;
  std::string request, answer;
  size_t sent = 0;
};

absl::StatusOr<std::unique_ptr<Page>> Page::open(const std::string& address, std::function<std::string()> text) {
  const absl::StatusOr<Endpoint> endpoint = split(address);
  if (!endpoint.ok()) return endpoint.status();
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(endpoint->host.c_str(), endpoint->port.c_str(), &wanted, &found);
  if (failed != 0)
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", gai_strerror(failed)));
  const int listener = listen_on(*found);
  const int error = errno;
  freeaddrinfo(found);
  if (listener < 0) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", std::strerror(error),
                                               "; choose another port with --metrics-port (0: any)"));
  }
  return std::unique_ptr<Page>(new Page(listener, port_of(listener), std::move(text)));
}

Page::Page(int listener, int port, std::function<std::string()> text)
    : listener_(listener),
      port_(port),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      text_(std::move(text)),
      thread_([this] { run(); }) {}

Page::~Page() {
  eventfd_write(wake_, 1);
  thread_.join();
  close(listener_);
  close(wake_);
}

void Page::run() {
  for (;;) {
    const bool full = visitors_.size() >= kMostVisitors;  // Further ones wait in the kernel's queue.
    std::vector<pollfd> waits = {{wake_, POLLIN, 0}, {listener_, static_cast<short>(full ? 0 : POLLIN), 0}};
    auto next = Clock::time_point::max();
    for (const auto& visitor : visitors_) {
      waits.push_back({visitor->fd, static_cast<short>(visitor->answer.empty() ? POLLIN : POLLOUT), 0});
      next = std::min(next, visitor->deadline);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    poll(waits.data(), waits.size(), visitors_.empty() ? -1 : static_cast<int>(std::max<int64_t>(0, left)));
    if (waits[0].revents != 0) return;
    for (size_t i = 0; i < visitors_.size(); ++i) {
      const bool over = waits[i + 2].revents != 0 ? !serve(*visitors_[i]) : Clock::now() >= visitors_[i]->deadline;
      if (over) visitors_[i].reset();
    }
    std::erase(visitors_, nullptr);
    if (waits[1].revents != 0) accept_visitor();
  }
}

void Page::accept_visitor() {
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    visitors_.push_back(std::make_unique<Visitor>(fd));
  } else if (errno == EMFILE || errno == ENFILE) {
    std::this_thread::sleep_for(kPauseWhenOutOfDescriptors);  // Else the queue would wake this thread all the time.
  }
}

bool Page::serve(Visitor& visitor) {
  if (visitor.answer.empty()) {
    char buffer[4096];
    const ssize_t got = read(visitor.fd, buffer, sizeof buffer);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    visitor.request.append(buffer, static_cast<size_t>(got));
    const bool whole = absl::StrContains(visitor.request, "\r\n\r\n");
    if (!whole && visitor.request.size() < kLongestRequest) return true;
    visitor.answer = whole ? answer(visitor.request)
                           : response("431 Request Header Fields Too Large", kPlain, "the request is too long\n");
  }
  const ssize_t wrote =
      send(visitor.fd, visitor.answer.data() + visitor.sent, visitor.answer.size() - visitor.sent, MSG_NOSIGNAL);
  if (wrote < 0) return errno == EAGAIN || errno == EINTR;
  visitor.sent += static_cast<size_t>(wrote);
  return visitor.sent < visitor.answer.size();
}

std::string Page::answer(const std::string& request) const {
  const std::vector<std::string> words = absl::StrSplit(request.substr(0, request.find("\r\n")), ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1."))
    return response("400 Bad Request", kPlain, "this is no HTTP request\n");
  const bool head = words[0] == "HEAD";
  if (!head && words[0] != "GET") return response("405 Method Not Allowed", kPlain, "only GET and HEAD are answered\n");
  const std::string path = words[1].substr(0, words[1].find('?'));
  if (path != "/metrics") return response("404 Not Found", kPlain, "the metrics are at /metrics\n", !head);
  return response("200 OK", kExposition, text_(), !head);
}

}  // namespace titan::metrics
