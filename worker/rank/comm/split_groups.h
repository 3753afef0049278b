#pragma once

// Opens the groups of all connections as communicators that are split from the world's, as NCCL does.

#include <functional>
#include <thread>
#include <vector>

#include "worker/rank/comm/communicator_splits.h"
#include "worker/rank/device/device.h"

namespace titan::comm {

// Runs all calls concurrently, each on its own thread, and returns when all have ended. Exceptions are discarded.
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

// One rank's view of communicators of a library that splits them from the world's, as NCCL does.
class Communicators {
 public:
  virtual ~Communicators() = default;

  virtual c10::intrusive_ptr<c10d::Backend> world() = 0;
  // Makes this rank's communicator of a split. Every rank calls it for every split, in the same order; `number` counts
  // the splits. Null for a rank that is in no group of the split. `max_ctas`: see BackendOptions::max_ctas.
  virtual c10::intrusive_ptr<c10d::Backend> cut(const CommSplit& cut, size_t number, int max_ctas) = 0;
  // Returns a function to call before a communicator is aborted, from any thread and also after this object is gone.
  virtual std::function<void()> abort_notice() const {
    return [] {};
  }
};

// Opens this rank's group of each connection; see Device::open_groups. A group's collectives run on one communicator
// and its messages on others.
//
// NCCL has no tags, runs the operations of a communicator one after another on each rank, and a send ends only when its
// receive has started. A communicator that carries messages in both directions can therefore deadlock: two ranks that
// both send first, each with its receive queued after the send. So every ordered pair of ranks has its own
// communicator: the sender only sends on it and the receiver only receives, in one order (runtime/engine/transfers.h),
// so a message waits only for earlier messages of the same direction. Ranks whose calls pair, one sending what the
// other receives at the same position, may share one (see comm_split_plan()).
//
// The first message of an ordered pair blocks both hosts until both ranks have made their calls, which can also
// deadlock: a rank that posts a receive for a gradient early blocks before it sends the activation that the gradient
// depends on. So this function sends one byte through each channel, split by split: the pairs of one split have no
// common rank, so no rank waits for two others.
std::vector<c10::intrusive_ptr<c10d::Backend>> open_split_groups(const std::vector<Connection>& connections,
                                                                 const device::BackendOptions& world, at::Device device,
                                                                 Communicators& communicators);

}  // namespace titan::comm
