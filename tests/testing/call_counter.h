#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "tests/testing/operation_watch.h"

namespace titan::testing {

// Calls of LibTorch's operations during the counter's life, on all threads: those that the program and autograd make,
// not those that operations make themselves. Each costs its host a few microseconds, and a GPU at least one kernel. One
// counter at a time; tests/peer/dispatcher_calls.py counts a profile of PyTorch's by the same rule.
class CallCounter : OperationWatch<CallCounter> {
 public:
  CallCounter() { count_ = 0; }
  static int64_t count() { return count_; }

  // What this thread does in this scope is one call: a graph of a device, that a test plays.
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
