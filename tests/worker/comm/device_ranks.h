#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/comm/thread_ranks.h"

namespace titan::testing {

using MakeDevice = std::function<std::unique_ptr<comm::Device>(const std::shared_ptr<comm::LocalHub>&)>;

// As run_ranks(), on devices of the caller's own, whose groups meet in the hub. Throws what went wrong first.
inline void run_ranks_on(const MakeDevice& make_device, const mesh::Degrees& degrees, int world,
                         const std::function<void(ThreadRank&)>& body) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // As in run_ranks().
  const auto hub = std::make_shared<comm::LocalHub>();
  const mesh::Mesh mesh = mesh::Mesh::create(degrees, world).value();
  std::mutex mutex;
  std::string first_failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        ThreadRank self;
        self.rank = rank;
        self.device = make_device(hub);
        self.mesh = std::make_unique<comm::DeviceMesh>(
            mesh, every_axis(), *self.device, self.ledger,
            comm::DeviceMeshOptions{.rank = rank, .store = hub->store(), .timeout = std::chrono::seconds(60)});
        body(self);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (first_failure.empty()) first_failure = "rank " + std::to_string(rank) + ": " + comm::describe(error);
        hub->fail(first_failure);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!first_failure.empty()) throw std::runtime_error(first_failure);
}

}  // namespace titan::testing
