#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "common/plan/pipeline/schedule.h"

namespace titan::runtime {

// Whether every pair of a schedule may wait for the inputs of both its halves before either begins: no second half
// needs what comes of its own first half. Then the halves can run at the same time.
bool pairs_can_overlap(const pipeline::Schedule& schedule);

// Runs the two halves of a pair side by side, in turns (comm::Turns): the forward pass of one microbatch computes while
// tokens of the other's backward pass travel between experts, and the other way round. Has a thread of its own, with as
// many compute threads as that of whoever makes it, on the same device.
class PairRunner {
 public:
  PairRunner();
  ~PairRunner();
  PairRunner(const PairRunner&) = delete;
  PairRunner& operator=(const PairRunner&) = delete;

  // Returns when both are done. When one throws, the other goes no further than its next exchange, and what the first
  // to fail threw is rethrown.
  void run(const std::function<void()>& first, const std::function<void()>& second);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;  // For the thread.
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace titan::runtime
