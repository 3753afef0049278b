#pragma once

#include <ATen/Parallel.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/comm/local_backend.h"
#include "worker/rank/comm/make_device.h"

namespace titan::testing {

// One rank of a world of threads: ranks hold no global state, so a whole mesh fits into one test process.
struct ThreadRank {
  int rank = 0;
  std::unique_ptr<device::Device> device;
  comm::Ledger ledger;
  std::unique_ptr<comm::DeviceMesh> mesh;
  std::shared_ptr<trace::SpanRecorder> spans = std::make_shared<trace::SpanRecorder>();  // Spans of the mesh's groups.
};

// Returns all axes.
inline std::set<mesh::Axis> every_axis() { return {mesh::kAllAxes.begin(), mesh::kAllAxes.end()}; }

// Creates the device of one rank. Devices of one world can meet in the hub.
using MakeDevice = std::function<std::unique_ptr<device::Device>(int rank, const std::shared_ptr<comm::LocalHub>&)>;

struct ThreadWorld {
  mesh::Degrees degrees;
  int size = 1;
  std::set<mesh::Axis> axes = every_axis();
  // In memory by default: no sockets, no additional threads.
  MakeDevice make_device = [](int, const std::shared_ptr<comm::LocalHub>& hub) { return comm::make_local_device(hub); };
  c10::intrusive_ptr<c10d::Store> store;  // Null: the hub's.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  bool shared_memory = true;                           // For devices that support it.
  std::map<mesh::Axis, comm::Messages> messages = {};  // DeviceMeshOptions::messages.
  int max_ctas = 0, message_max_ctas = 0;              // Members of DeviceMeshOptions with the same names.
};

// Runs `body` once for each rank of the world, all at the same time; returns the exception of each. A rank that throws
// a std::exception reports it to the hub first, as the rank program does; any other exception ends it without a report.
inline std::vector<std::exception_ptr> run_world(const ThreadWorld& world,
                                                 const std::function<void(ThreadRank&)>& body) {
  // c10d's flight recorder is one map for the process and partly not locked: ranks that are threads corrupt it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const mesh::Mesh mesh = mesh::Mesh::create(world.degrees, world.size).value();
  const auto hub = std::make_shared<comm::LocalHub>();
  const c10::intrusive_ptr<c10d::Store> store = world.store ? world.store : hub->store();
  std::vector<std::exception_ptr> failures(world.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        ThreadRank self;
        self.rank = rank;
        try {
          self.device = world.make_device(rank, hub);
          self.mesh =
              std::make_unique<comm::DeviceMesh>(mesh, world.axes, *self.device, self.ledger,
                                                 comm::DeviceMeshOptions{.rank = rank,
                                                                         .store = store,
                                                                         .timeout = world.timeout,
                                                                         .messages = world.messages,
                                                                         .shared_memory = world.shared_memory,
                                                                         .max_ctas = world.max_ctas,
                                                                         .message_max_ctas = world.message_max_ctas,
                                                                         .spans = self.spans});
          body(self);
        } catch (const std::exception& failure) {
          hub->fail("rank " + std::to_string(rank) + " failed: " + comm::describe(failure));
          throw;
        }
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// Rethrows one exception, if any: the cause rather than the PeerLost that it causes on the other ranks.
inline void rethrow_cause(const std::vector<std::exception_ptr>& failures) {
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

// Transport between the threads of a test.
enum class Via {
  kMemory,        // The in-process backend.
  kGloo,          // The transport of CPU ranks on several machines.
  kSharedMemory,  // The transport of CPU ranks on one machine.
};

inline std::string name_of(Via via) {
  return via == Via::kMemory ? "Memory" : via == Via::kGloo ? "Gloo" : "SharedMemory";
}

// Calls run_world() and then rethrow_cause().
inline void run_ranks(const mesh::Degrees& degrees, int size, const std::set<mesh::Axis>& axes,
                      const std::function<void(ThreadRank&)>& body, Via via = Via::kMemory) {
  ThreadWorld world{.degrees = degrees, .size = size, .axes = axes};
  world.shared_memory = via == Via::kSharedMemory;
  if (via != Via::kMemory) {
    world.make_device = [](int, const std::shared_ptr<comm::LocalHub>&) { return comm::make_cpu_device(); };
    world.store = c10::make_intrusive<c10d::HashStore>();
  }
  rethrow_cause(run_world(world, body));
}

}  // namespace titan::testing
