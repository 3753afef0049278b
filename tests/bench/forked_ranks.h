#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>

#include "worker/rank/comm/group.h"
#include "worker/rank/comm/store.h"

namespace titan::bench {

// Runs `body(rank, store)` in a separate process for each rank of this machine, with a store that they share. Call it
// before LibTorch starts any thread. Returns the program's exit code: 1 if a rank failed, after that rank printed why
// on stderr.
inline int fork_ranks(int ranks, const std::function<void(int, const c10::intrusive_ptr<c10d::Store>&)>& body) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 16) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("listen for the ranks");
    return 1;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) std::perror("fork a rank");
    if (child != 0) continue;
    try {
      const auto store = comm::make_store(rank == 0 ? comm::StoreOptions{.server = true, .listen_fd = listener}
                                                    : comm::StoreOptions{.port = ntohs(address.sin_port)});
      body(rank, store);
      comm::leave_together(*store, rank, ranks, std::chrono::seconds(30));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, comm::describe(error).c_str());
      _exit(1);
    }
    std::fflush(stdout);
    _exit(0);
  }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed += status != 0;
  return failed == 0 ? 0 : 1;
}

}  // namespace titan::bench
