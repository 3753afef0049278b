#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"

namespace titan::metrics {

// One connection of a page's visitor: takes a request, sends the answer and ends. Never waits; its owner polls.
class Visitor {
 public:
  // `socket`: connected and non-blocking; closed by the destructor.
  Visitor(int socket, absl::Time now);
  ~Visitor();
  Visitor(const Visitor&) = delete;
  Visitor& operator=(const Visitor&) = delete;

  int socket() const { return socket_; }
  // Whether the socket is to be polled for writing, else for reading.
  bool sends() const { return phase_ == Phase::kAnswer; }
  // Whether the whole request is here: until then it may be somebody who only holds a place.
  bool has_asked() const { return phase_ != Phase::kRequest; }
  // The connection is closed at this time even if its client keeps sending.
  absl::Time deadline() const { return deadline_; }

  // Does what can be done now that the socket is ready. `page` makes the text of /metrics. False: it is over.
  bool go_on(absl::Time now, const std::function<std::string()>& page);

 private:
  // After the answer what still comes is read and forgotten: a socket that is closed with bytes unread takes the answer
  // back.
  enum class Phase { kRequest, kAnswer, kGoodbye };

  bool read_request(absl::Time now, const std::function<std::string()>& page);
  bool send_answer(absl::Time now);
  bool hear_goodbye();

  const int socket_;
  Phase phase_ = Phase::kRequest;
  absl::Time deadline_;
  std::string request_;
  std::string answer_;
  size_t sent_ = 0;
};

}  // namespace titan::metrics
