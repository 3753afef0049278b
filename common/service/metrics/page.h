#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/service/metrics/visitor.h"

namespace titan::metrics {

// One page of text over HTTP, http://ADDRESS/metrics, for GET and HEAD. One thread serves all visitors and waits for
// none: a visitor without a whole request after a second is dropped, and when all places are taken the one who has not
// asked for the longest makes place for the next, so that a scrape is answered however many half requests there are.
// The destructor waits for `text` at most.
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
