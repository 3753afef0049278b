#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

namespace titan::testing {

// Calls of LibTorch's operations during the counter's life, on all threads: those that the program and autograd make,
// not those that operations make themselves. Each costs its host a few microseconds, and a GPU at least one kernel. One
// counter at a time; tests/peer/dispatcher_calls.py counts a profile of PyTorch's by the same rule.
class CallCounter {
 public:
  CallCounter() {
    count_ = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION}));
  }
  ~CallCounter() { at::removeCallback(handle_); }
  CallCounter(const CallCounter&) = delete;
  CallCounter& operator=(const CallCounter&) = delete;
  static int64_t count() { return count_; }

 private:
  static bool counts(const at::RecordFunction& call) { return std::strncmp(call.name(), "aten::", 6) == 0; }
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    if (counts(call) && depth_++ == 0) ++count_;
    return nullptr;
  }
  static void leave(const at::RecordFunction& call, at::ObserverContext* /*context*/) {
    if (counts(call)) --depth_;
  }

  static inline std::atomic<int64_t> count_;
  static inline thread_local int depth_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace titan::testing
