#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <utility>

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

}  // namespace titan::device
