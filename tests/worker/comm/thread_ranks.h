#pragma once

#include <ATen/Parallel.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "worker/comm/device_mesh.h"
#include "worker/comm/local_backend.h"

namespace titan::testing {

// One rank of a world of threads: ranks hold no global state, so a whole mesh fits into one test process.
struct ThreadRank {
  int rank = 0;
  std::unique_ptr<comm::Device> device;
  comm::Ledger ledger;
  std::unique_ptr<comm::DeviceMesh> mesh;
};

// How the threads of a test reach each other.
enum class Via {
  kMemory,  // The in-process backend: no sockets, no threads of its own.
  kGloo,    // What real CPU ranks use.
};

// Runs `body` once for each rank of the mesh, all at the same time, and rethrows an exception: the cause rather than
// the PeerLost that it brings to the other ranks.
inline void run_ranks(const mesh::Degrees& degrees, int world, const std::set<mesh::Axis>& axes,
                      const std::function<void(ThreadRank&)>& body, Via via = Via::kMemory) {
  // c10d's flight recorder is one map for the process, and part of it is not locked: threads that are ranks corrupt it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const mesh::Mesh mesh = mesh::Mesh::create(degrees, world).value();
  auto hub = std::make_shared<comm::LocalHub>();
  c10::intrusive_ptr<c10d::Store> store = hub->store();
  if (via == Via::kGloo) store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        ThreadRank self;
        self.rank = rank;
        self.device = via == Via::kGloo ? comm::make_cpu_device() : comm::make_local_device(hub);
        self.mesh = std::make_unique<comm::DeviceMesh>(
            mesh, axes, *self.device, self.ledger,
            comm::DeviceMeshOptions{.rank = rank, .store = store, .timeout = std::chrono::seconds(30)});
        body(self);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr lost;
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const comm::PeerLost&) {
      lost = failure;
    }
  }
  if (lost) std::rethrow_exception(lost);
}

// All of them.
inline std::set<mesh::Axis> every_axis() { return {mesh::kAllAxes.begin(), mesh::kAllAxes.end()}; }

}  // namespace titan::testing
