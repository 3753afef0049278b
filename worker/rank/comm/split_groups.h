#pragma once

// Opens the groups of all connections as communicators that are cut from the world's, as NCCL does it.

#include <functional>
#include <thread>
#include <vector>

#include "worker/rank/comm/communicator_cuts.h"
#include "worker/rank/device/device.h"

namespace titan::comm {

// Makes all calls at the same time, each on a thread of its own, and returns when all have ended. What they throw is
// lost.
inline void at_once(const std::vector<std::function<void()>>& calls) {
  std::vector<std::jthread> threads;
  for (const std::function<void()>& call : calls) {
    threads.emplace_back([&call] {
      try {
        call();
      } catch (...) {
      }
    });
  }
}

// Communicators of a library that cuts them out of the world's, as NCCL does; one rank's view.
class Communicators {
 public:
  virtual ~Communicators() = default;

  virtual c10::intrusive_ptr<c10d::Backend> world() = 0;
  // Every rank calls it for every cut, in one order; `number` counts the cuts. Null for a rank that has no group in the
  // cut. `max_ctas`: BackendOptions::max_ctas.
  virtual c10::intrusive_ptr<c10d::Backend> cut(const Cut& cut, size_t number, int max_ctas) = 0;
  // What is called before a communicator is aborted, from any thread and also when this object is gone.
  virtual std::function<void()> abort_notice() const {
    return [] {};
  }
};

// This rank's group of each connection; see Device::open_groups. Collectives of a group run on one communicator and its
// messages on others.
//
// NCCL has no tags and runs the operations of one communicator one after the other on each rank, and a send ends only
// when its receive has begun. A communicator that carries messages both ways can therefore stop for ever: two ranks
// that both send first, each with a receive queued behind. So every ordered pair of ranks has a communicator of its
// own: on it the sender only sends and the receiver only receives, in one order (runtime/engine/transfers.h), and a
// message waits only for earlier messages of the same direction. Ranks that pair their calls, one sending what the
// other receives at the same place in its order, may share one (cut_plan() says when).
//
// The first message of an ordered pair blocks both hosts until the other rank has made its call, which can be circular
// as well: a rank that asks early for a gradient blocks before it sends the activation that the gradient comes from. So
// each channel carries a byte here, cut by cut: pairs of one cut do not touch, and no rank waits for two others.
std::vector<c10::intrusive_ptr<c10d::Backend>> open_split_groups(const std::vector<Connection>& connections,
                                                                 const device::BackendOptions& world, at::Device device,
                                                                 Communicators& communicators);

}  // namespace titan::comm
