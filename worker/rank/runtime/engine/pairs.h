#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "common/plan/pipeline/schedule.h"

namespace titan::runtime {

// Returns whether every pair of a schedule may wait for the inputs of both halves before either begins, because no
// second half needs the result of its first half. Then the halves can run concurrently.
bool pairs_can_overlap(const pipeline::Schedule& schedule);

// Runs the two halves of a pair concurrently, taking turns (comm::Turns): one microbatch's forward pass computes while
// tokens of the other's backward pass travel between experts, and vice versa. It has its own thread, with the
// constructing thread's device and number of compute threads.
class PairRunner {
 public:
  PairRunner();
  ~PairRunner();
  PairRunner(const PairRunner&) = delete;
  PairRunner& operator=(const PairRunner&) = delete;

  // Returns when both are done. If one throws, the other stops at its next exchange, and the first exception is
  // rethrown.
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
