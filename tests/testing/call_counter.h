#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "tests/testing/operation_watch.h"

namespace titan::testing {

// Counts calls of LibTorch operations during its lifetime on all threads: those of the program and of autograd, but not
// calls inside operations. Each call costs its host a few microseconds, and a GPU at least one kernel. Only one counter
// may exist at a time. tests/peer/dispatcher_calls.py counts a PyTorch profile by the same rule.
class CallCounter : OperationWatch<CallCounter> {
 public:
  CallCounter() { count_ = 0; }
  static int64_t count() { return count_; }

  // All operations of this thread in this scope count as one call, like a replayed device graph.
  class OneCall {
   public:
    OneCall() {
      if (depth_++ == 0) ++count_;
    }
    ~OneCall() { --depth_; }
    OneCall(const OneCall&) = delete;
    OneCall& operator=(const OneCall&) = delete;
  };

 private:
  friend OperationWatch<CallCounter>;
  static bool counts(const char* name) { return std::strncmp(name, "aten::", 6) == 0; }
  static void entered(const char* name) {
    if (counts(name) && depth_++ == 0) ++count_;
  }
  static void left(const char* name) {
    if (counts(name)) --depth_;
  }

  static inline std::atomic<int64_t> count_;
  static inline thread_local int depth_ = 0;
};

}  // namespace titan::testing
