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

// Listens at HOST:PORT or [IPV6]:PORT; port 0 selects a free port. Errors: InvalidArgument for another form of address,
// Unavailable with the cause when listening fails.
absl::StatusOr<Listener> listen_at(const std::string& address);

// One client connection: reads a request, sends the response and closes. Never blocks; its owner polls the socket.
class HttpConnection {
 public:
  // Takes ownership of `socket`, which must be connected and non-blocking.
  HttpConnection(int socket, absl::Time now);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  int socket() const { return socket_; }
  // Returns whether to poll the socket for writing rather than reading.
  bool sends() const { return phase_ == Phase::kAnswer; }
  // Returns whether the whole request has arrived. Until then the client may only be holding a connection.
  bool has_request() const { return phase_ != Phase::kRequest; }
  // The owner closes the connection at this time even if the client keeps sending.
  absl::Time deadline() const { return deadline_; }

  // Call this when the socket is ready. `page` makes the text of /metrics. Returns false when the connection is done.
  bool advance(absl::Time now, const std::function<std::string()>& page);

 private:
  // After the response, kDraining reads and discards what still arrives: closing a socket with unread bytes sends a
  // reset, which can discard the response.
  enum class Phase { kRequest, kAnswer, kDraining };

  bool read_request(absl::Time now, const std::function<std::string()>& page);
  bool send_answer(absl::Time now);
  bool drain();

  const int socket_;
  Phase phase_ = Phase::kRequest;
  absl::Time deadline_;
  std::string request_;
  std::string answer_;
  size_t sent_ = 0;
};

// Serves one page of text over HTTP at http://ADDRESS/metrics, for GET and HEAD. One thread serves all connections and
// never blocks on one. A connection without a whole request after a second is dropped. When the connection limit is
// reached, a new connection replaces the oldest one without a request, or else the oldest of all, so half requests
// cannot keep a scrape from being answered. The destructor waits for a running call of `text` at most.
class Page {
 public:
  // `address` is HOST:PORT or [IPV6]:PORT; port 0 selects a free port. The page's thread calls `text` for each request.
  // Errors: those of listen_at().
  static absl::StatusOr<std::unique_ptr<Page>> open(const std::string& address, std::function<std::string()> text);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  int port() const { return port_; }

 private:
  Page(int listener, int port, std::function<std::string()> text);

  void serve();
  void accept_connections(absl::Time now);
  void evict_connection();

  const int listener_;
  const int port_;
  const std::function<std::string()> text_;
  const int wake_;                         // An eventfd that stops the thread.
  std::list<HttpConnection> connections_;  // In order of arrival.
  std::thread thread_;
};

// Fetches the text of such a page. Errors: Unavailable when the request fails; connecting and reading may each take
// `timeout`, rounded up to seconds.
absl::StatusOr<std::string> read_page(const std::string& host, int port, absl::Duration timeout);

}  // namespace titan::metrics
