#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::metrics {

// One page of text over HTTP, http://ADDRESS/metrics, for GET and HEAD. A thread of its own serves some connections at
// a time; slow or silent ones are dropped, and the destructor waits for none of them.
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
  struct Visitor;

  Page(int listener, int port, std::function<std::string()> text);
  void run();
  void accept_visitor();
  bool serve(Visitor& visitor);  // False when it is done with.
  std::string answer(const std::string& request) const;

  const int listener_;
  const int port_;
  const int wake_;  // eventfd: ends the thread.
  const std::function<std::string()> text_;
  std::vector<std::unique_ptr<Visitor>> visitors_;  // The thread's.
  std::thread thread_;
};

}  // namespace titan::metrics
