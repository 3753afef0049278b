#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker/runtime/failure.h"

namespace titan::runtime {

// How the failure of one rank reaches all others when ranks are processes. The first to fail writes its reason into the
// attempt's store and breaks its connections. Over sockets that alone ends whoever waits for it within milliseconds,
// and so on through the mesh. NCCL's transports inside a node say nothing, and a rank may share no group with the one
// that failed, so every rank also waits at the store for a reason, and breaks its own connections when one comes (or
// the store is gone, and rank 0 with it).
class FailureWatch {
 public:
  struct Setup {
    int rank = 0;
    int world = 1;
    c10::intrusive_ptr<c10d::Store> store;  // This attempt's keys.
    // Breaks this rank's connections. Called once, from whichever thread learns of a failure first.
    std::function<void()> break_connections;
    // Ends the process: another rank has failed, and this one did not notice for `patience` (it computes, or waits for
    // a device whose work will never end). Does not return.
    std::function<void(const Failure&)> leave;
    std::chrono::milliseconds patience{5'000};
  };

  explicit FailureWatch(Setup setup);
  // From then on nothing is called any more.
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  // This rank has failed: tells the others, and returns what it should report. A lost peer is named with the reason of
  // the first rank to fail; so are numbers and kernels that went wrong after this rank's connections were broken for
  // it. Takes at most a few seconds, also when the store does not answer.
  Failure failed(const Failure& own);

 private:
  struct State;

  const std::shared_ptr<State> state_;  // Shared with threads that may be stuck in a call to the store.
};

}  // namespace titan::runtime
