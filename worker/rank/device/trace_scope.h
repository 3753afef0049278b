#pragma once

// Names stretches of a thread's work for traces, and tells which of these scopes a thread is in.

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync/sync.h"

namespace titan::device {

// A named stretch of this thread's work, in profiler traces (worker/rank/runtime/profiling). While nobody records, it
// costs a look at a flag: the name is a callable that makes the text only then.
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

// While one lives, the thread that made it knows the scopes that it is in: Titan's (TraceScope) and LibTorch's
// operations. So do threads that work for it with its at::ThreadLocalState. Autograd's threads also know the scopes of
// the thread whose forward pass they go back through, which waits for them meanwhile. Made and destroyed by one thread.
class ScopeNames {
 public:
  ScopeNames();
  ~ScopeNames();
  ScopeNames(const ScopeNames&) = delete;
  ScopeNames& operator=(const ScopeNames&) = delete;

 private:
  at::CallbackHandle callback_;
};

// Numbers for the stacks of scopes that were asked for, so that an event can carry one. Thread-safe.
class ScopeTable {
 public:
  // Of the calling thread; 0 where nobody named its scopes. A step's own scope is left out: it has another name each
  // time, and the table would grow with the job.
  int32_t now();

  std::vector<std::vector<std::string>> stacks() const;  // By number, the innermost scope first.

 private:
  mutable sync::Mutex mutex_;
  std::map<std::string, int32_t, std::less<>> numbers_ TITAN_GUARDED_BY(mutex_);  // By the names, a line each.
  std::vector<std::vector<std::string>> stacks_ TITAN_GUARDED_BY(mutex_) = {{}};
};

}  // namespace titan::device
