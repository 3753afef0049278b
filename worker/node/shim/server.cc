#include "worker/node/shim/server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/status/status.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/sockets.h"

namespace titan::shim {
namespace {

using nlohmann::json;
constexpr size_t kMaxWaiting = 16 << 20;
constexpr size_t kMaxRequest = 1 << 20;

}  // namespace

absl::StatusOr<Server> Server::open(const std::string& run_folder) {
  TITAN_ASSIGN_OR_RETURN(host::Descriptor listener, listen_unix(run_folder, kSocketName));
  return Server(std::move(listener));
}

void Server::adopt(host::Descriptor client) {
  ::fcntl(client.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(client.get(), F_SETFD, FD_CLOEXEC);
  clients_.push_back({std::move(client), /*subscribed=*/true});
}

void Server::add_waits(std::vector<pollfd>& waits) const {
  waits.push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) {
    waits.push_back({client.socket.get(), static_cast<short>(POLLIN | (client.out.empty() ? 0 : POLLOUT)), 0});
  }
}

void Server::handle(const std::vector<pollfd>& waits, const Handler& handler) {
  bool arrivals = false;
  for (const pollfd& wait : waits) {
    if (wait.revents == 0) continue;
    if (wait.fd == listener_.get()) arrivals = true;
    for (Client& client : clients_) {
      if (client.socket.get() != wait.fd) continue;
      if ((wait.revents & POLLOUT) != 0) write_to(client);
      if ((wait.revents & ~POLLOUT) != 0) read_from(client, handler);
    }
  }
  remove_broken();
  if (arrivals) accept_all();
}

void Server::accept_all() {
  for (;;) {
    host::Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    clients_.push_back({std::move(socket)});
  }
}

void Server::read_from(Client& client, const Handler& handler) {
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(client.socket.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0 || client.in.size() > kMaxRequest) {
      client.broken = true;
      break;
    }
    client.in.append(buffer, static_cast<size_t>(n));
  }
  size_t begin = 0;
  for (size_t end = 0; (end = client.in.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const json request = json::parse(client.in.substr(begin, end - begin), nullptr, false);
    if (!request.is_object()) {
      send(client, {{"ok", false}, {"error", "a request must be one JSON object per line"}});
      continue;
    }
    json answer = handler(request);
    // Copy only primitive ids: writing a deeply nested value could overflow the stack.
    if (const auto id = request.find("id"); id != request.end() && id->is_primitive()) answer["id"] = *id;
    const auto command = request.find("command");
    if (command != request.end() && *command == "subscribe") client.subscribed = true;
    send(client, answer);
  }
  client.in.erase(0, begin);
}

void Server::broadcast(const json& message) {
  for (Client& client : clients_) {
    if (client.subscribed) send(client, message);
  }
  remove_broken();
}

bool Server::has_subscriber() const {
  for (const Client& client : clients_) {
    if (client.subscribed) return true;
  }
  return false;
}

void Server::send(Client& client, const json& message) {
  client.out += message.dump(-1, ' ', false, json::error_handler_t::replace);
  client.out += '\n';
  if (client.out.size() > kMaxWaiting) client.broken = true;
  write_to(client);
}

void Server::write_to(Client& client) {
  while (!client.out.empty() && !client.broken) {
    const ssize_t n = ::send(client.socket.get(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      client.broken = true;
      return;
    }
    client.out.erase(0, static_cast<size_t>(n));
  }
}

void Server::remove_broken() {
  clients_.remove_if([](const Client& client) { return client.broken; });
}

void Server::flush(int milliseconds) {
  const int64_t deadline = monotonic_nanos() + milliseconds * 1'000'000LL;
  for (;;) {
    std::vector<pollfd> waits;
    for (Client& client : clients_) {
      write_to(client);
      if (!client.out.empty() && !client.broken) waits.push_back({client.socket.get(), POLLOUT, 0});
    }
    const int64_t left = (deadline - monotonic_nanos()) / 1'000'000;
    if (waits.empty() || left <= 0) return;
    ::poll(waits.data(), waits.size(), static_cast<int>(left));
  }
}

}  // namespace titan::shim
