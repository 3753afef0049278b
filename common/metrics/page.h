#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace httplib {
class Server;
}

namespace titan::metrics {

// One page of text over HTTP, http://ADDRESS/metrics, for GET and HEAD. A visitor that sends nothing is dropped after a
// second, so the destructor takes no longer than that.
class Page {
 public:
  // `address`: HOST:PORT or [IPV6]:PORT; port 0 takes a free one. `text` is called on the page's threads for each
  // request. Errors: InvalidArgument for another form of address, Unavailable when it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Page>> open(const std::string& address, std::function<std::string()> text);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  int port() const { return port_; }

 private:
  Page(std::unique_ptr<httplib::Server> server, int port);

  const std::unique_ptr<httplib::Server> server_;
  const int port_;
  std::thread thread_;
};

// The text of such a page. Errors: Unavailable when it cannot be had within about `patience`.
absl::StatusOr<std::string> read_page(const std::string& host, int port, absl::Duration patience);

}  // namespace titan::metrics
