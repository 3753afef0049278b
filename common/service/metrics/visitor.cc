#include "common/service/metrics/visitor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::metrics {
namespace {

// Of the whole request, so that a byte now and then holds no place.
constexpr absl::Duration kRequestPatience = absl::Seconds(1);
constexpr absl::Duration kAnswerPatience = absl::Seconds(10);  // Without a byte that is taken.
constexpr absl::Duration kGoodbyePatience = absl::Seconds(1);
constexpr size_t kLongestRequest = 8 << 10;
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

Visitor::Visitor(int socket, absl::Time now) : socket_(socket), deadline_(now + kRequestPatience) {}

Visitor::~Visitor() { ::close(socket_); }

bool Visitor::go_on(absl::Time now, const std::function<std::string()>& page) {
  switch (phase_) {
    case Phase::kRequest:
      return read_request(now, page);
    case Phase::kAnswer:
      return send_answer(now);
    case Phase::kGoodbye:
      return hear_goodbye();
  }
  return false;
}

bool Visitor::read_request(absl::Time now, const std::function<std::string()>& page) {
  std::array<char, 4096> bytes;
  const ssize_t read = ::recv(socket_, bytes.data(), bytes.size(), 0);
  if (read < 0) return would_wait();
  if (read == 0) return false;
  request_.append(bytes.data(), static_cast<size_t>(read));
  if (!is_whole(request_) && request_.size() <= kLongestRequest) return true;
  answer_ = answer_to(request_, page);
  phase_ = Phase::kAnswer;
  deadline_ = now + kAnswerPatience;
  return send_answer(now);
}

bool Visitor::send_answer(absl::Time now) {
  while (sent_ < answer_.size()) {
    const ssize_t sent = ::send(socket_, answer_.data() + sent_, answer_.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) return would_wait();
    sent_ += static_cast<size_t>(sent);
    deadline_ = now + kAnswerPatience;
  }
  ::shutdown(socket_, SHUT_WR);
  phase_ = Phase::kGoodbye;
  deadline_ = now + kGoodbyePatience;
  return true;
}

bool Visitor::hear_goodbye() {
  std::array<char, 4096> bytes;
  const ssize_t read = ::recv(socket_, bytes.data(), bytes.size(), 0);
  return read > 0 || (read < 0 && would_wait());
}

}  // namespace titan::metrics
