#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace titan::comm {

struct StoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  bool server = false;           // Rank 0 hosts the store.
  std::optional<int> listen_fd;  // Inherited listening socket, used instead of host:port by the server.
  std::chrono::milliseconds timeout{300'000};
};

// The key-value store through which ranks find each other. Returns once connected; does not wait for other ranks.
// Throws PeerLost when the server does not answer in time.
c10::intrusive_ptr<c10d::Store> make_store(const StoreOptions& options);

// Part of a store whose keys cannot meet those of another attempt or purpose.
c10::intrusive_ptr<c10d::Store> prefixed(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix);

// Returns once every rank is here, and on the rank that hosts the store (0) only once the others need it no more: a
// rank that closes its connections earlier can break a collective that another is still in. Gives up silently after
// `timeout`.
void leave_together(c10d::Store& store, int rank, int world, std::chrono::milliseconds timeout);

}  // namespace titan::comm
