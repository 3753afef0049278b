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
  std::optional<int> listen_fd;  // Inherited listening socket that the server uses instead of host:port.
  std::chrono::milliseconds timeout{300'000};
};

// Connects to the key-value store through which ranks find each other. Returns once connected; does not wait for other
// ranks. Throws PeerLost if the server does not answer in time.
c10::intrusive_ptr<c10d::Store> make_store(const StoreOptions& options);

// Returns a view of a store whose keys all have this prefix, so that attempts and purposes do not collide.
c10::intrusive_ptr<c10d::Store> prefixed(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix);

// Returns when every rank has called it; on rank 0, which hosts the store, only when the others no longer need the
// store. A rank that closes its connections earlier can break a collective of another rank. Gives up silently after
// `timeout`.
void leave_together(c10d::Store& store, int rank, int world, std::chrono::milliseconds timeout);

}  // namespace titan::comm
