#include "common/metrics/page.h"

#include <httplib.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/host_port.h"

namespace titan::metrics {
namespace {

constexpr size_t kThreads = 4;
constexpr time_t kPatienceSeconds = 1;  // With a visitor that says nothing.
constexpr char kExposition[] = "text/plain; version=0.0.4; charset=utf-8";

std::unique_ptr<httplib::Server> make_server(std::function<std::string()> text) {
  auto server = std::make_unique<httplib::Server>();
  server->new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server->set_keep_alive_max_count(1);
  server->set_keep_alive_timeout(kPatienceSeconds);
  server->set_read_timeout(kPatienceSeconds);
  // The library's default lets two programs share a port: the second would start and answer half of the visitors.
  server->set_socket_options([](socket_t socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  server->Get("/metrics", [text = std::move(text)](const httplib::Request&, httplib::Response& response) {
    response.set_content(text(), kExposition);
  });
  server->set_error_handler([](const httplib::Request&, httplib::Response& response) {
    response.set_content("the metrics are at /metrics\n", "text/plain; charset=utf-8");
  });
  return server;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Page>> Page::open(const std::string& address, std::function<std::string()> text) {
  const std::optional<HostPort> endpoint = split_host_port(address);
  if (!endpoint)
    return absl::InvalidArgumentError(absl::StrCat("metrics address '", address, "': it must be HOST:PORT"));
  std::unique_ptr<httplib::Server> server = make_server(std::move(text));
  errno = 0;
  int port = endpoint->port;
  if (port == 0) {
    port = server->bind_to_any_port(endpoint->host);
  } else if (!server->bind_to_port(endpoint->host, port)) {
    port = -1;
  }
  if (port < 0) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ",
                                               errno != 0 ? std::strerror(errno) : "no such host",
                                               "; choose another port with --metrics-port (0: any)"));
  }
  return std::unique_ptr<Page>(new Page(std::move(server), port));
}

Page::Page(std::unique_ptr<httplib::Server> server, int port)
    : server_(std::move(server)), port_(port), thread_([this] { server_->listen_after_bind(); }) {
  while (!server_->is_running()) std::this_thread::yield();  // The server forgets a stop() that comes earlier.
}

Page::~Page() {
  server_->stop();
  thread_.join();
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
