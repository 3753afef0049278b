#include "worker/rank/comm/store.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "worker/rank/comm/group.h"

namespace titan::comm {
namespace {

int port_of(int listen_fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(listen_fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("--listen-fd " + std::to_string(listen_fd) + ": " + std::strerror(errno));
  }
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> make_store(const StoreOptions& options) {
  c10d::TCPStoreOptions store_options;
  store_options.isServer = options.server;
  store_options.waitWorkers = false;
  store_options.timeout = options.timeout;
  store_options.port = static_cast<uint16_t>(options.port);
  std::string host = options.host;
  if (options.server && options.listen_fd) {
    store_options.masterListenFd = *options.listen_fd;
    store_options.port = static_cast<uint16_t>(port_of(*options.listen_fd));
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, store_options);
  } catch (const std::exception& error) {
    throw PeerLost("rendezvous store " + host + ":" + std::to_string(store_options.port) + ": " + describe(error));
  }
}

c10::intrusive_ptr<c10d::Store> prefixed(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

void leave_together(c10d::Store& store, int rank, int world, std::chrono::milliseconds timeout) {
  try {
    if (store.add("exit/arrived", 1) == world) store.set("exit/all", "1");
    store.wait({"exit/all"}, timeout);
    if (rank != 0) {
      if (store.add("exit/gone", 1) == world - 1) store.set("exit/empty", "1");
    } else {
      store.wait({"exit/empty"}, timeout);
    }
  } catch (const std::exception&) {
    // Another rank died while leaving; this rank's work is done anyway.
  }
}

}  // namespace titan::comm
