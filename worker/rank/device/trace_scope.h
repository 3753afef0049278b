#pragma once

// Names sections of a thread's work for traces, and tracks which of these scopes a thread is in.

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync/sync.h"

namespace titan::device {

// A named section of this thread's work in profiler traces (worker/rank/runtime/profiling). While no trace is recorded
// it costs only the check of a flag: `name` is a callable that creates the text only when needed.
class TraceScope {
 public:
  template <typename Name>
  explicit TraceScope(const Name& name) {
    auto recording = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!recording) return;
    record_.emplace(std::move(*recording));
    record_->before(name());
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  std::optional<at::RecordFunction> record_;
};

// While it lives, the scopes of the creating thread are tracked: Titan's (TraceScope) and LibTorch's operations. The
// scopes of threads that work for it with its at::ThreadLocalState are tracked as well. Autograd's threads inherit the
// scopes of the thread whose forward pass they differentiate, because it waits for them. Create and destroy it on one
// thread.
class ScopeNames {
 public:
  ScopeNames();
  ~ScopeNames();
  ScopeNames(const ScopeNames&) = delete;
  ScopeNames& operator=(const ScopeNames&) = delete;

 private:
  at::CallbackHandle callback_;
};

// Numbers the stacks of scopes, so that an event can refer to one. Thread-safe.
class ScopeTable {
 public:
  // Returns the number of the calling thread's stack. 0: its scopes are not tracked. A step's scope is left out,
  // because its name differs in each step and the table would grow with the job.
  int32_t now();

  std::vector<std::vector<std::string>> stacks() const;  // By number, the innermost scope first.

 private:
  mutable sync::Mutex mutex_;
  std::map<std::string, int32_t, std::less<>> numbers_ TITAN_GUARDED_BY(mutex_);  // By the names, one per line.
  std::vector<std::vector<std::string>> stacks_ TITAN_GUARDED_BY(mutex_) = {{}};
};

}  // namespace titan::device
