#pragma once

// Serves one page of text over HTTP: the listening socket, each visitor's connection, and the thread that polls them.

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::metrics {

struct Listener {
  int socket = -1;  // Non-blocking; the caller closes it.
  int port = 0;
};

// Listens at HOST:PORT or [IPV6]:PORT; port 0 takes a free one. Errors: InvalidArgument for another form of address,
// Unavailable when it cannot be listened on, which says why.
absl::StatusOr<Listener> listen_at(const std::string& address);

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

// One page of text over HTTP, http://ADDRESS/metrics, for GET and HEAD. One thread serves all visitors and waits for
// none: a visitor without a whole request after a second is dropped, and when all places are taken, the one that has
// been without a request for the longest makes place for the next. A scrape is therefore answered however many half
// requests there are. The destructor waits for `text` at most.
class Page {
 public:
  // `address`: HOST:PORT or [IPV6]:PORT; port 0 takes a free one. `text` is called on the page's thread for each
  // request. Errors: InvalidArgument for another form of address, Unavailable when it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Page>> open(const std::string& address, std::function<std::string()> text);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  int port() const { return port_; }

 private:
  Page(int listener, int port, std::function<std::string()> text);

  void serve();
  void welcome(absl::Time now);
  void make_place();

  const int listener_;
  const int port_;
  const std::function<std::string()> text_;
  const int wake_;               // eventfd: ends the thread.
  std::list<Visitor> visitors_;  // In the order in which they came.
  std::thread thread_;
};

// The text of such a page. Errors: Unavailable when it cannot be had within about `patience`.
absl::StatusOr<std::string> read_page(const std::string& host, int port, absl::Duration patience);

}  // namespace titan::metrics
