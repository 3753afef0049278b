#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "worker/rank/trace/spans.h"

namespace titan::comm {

// One operation of a group that somebody records, from its issue until its result was there. That was when somebody
// began to wait for it, if the work then says that it is complete, else when the wait returned: in between nobody
// asks. NCCL's wait returns at once and its kernels have rows of their own in the profiler's trace.
class TransferSpan {
 public:
  // Null while nobody records. `operation`: a literal.
  static std::unique_ptr<TransferSpan> begin(const std::shared_ptr<trace::Spans>& spans, const char* operation,
                                             const std::string& axis, int ranks, size_t bytes) {
    if (!spans || !spans->recording()) return nullptr;
    return std::unique_ptr<TransferSpan>(new TransferSpan(spans, {.operation = operation,
                                                                  .axis = axis,
                                                                  .ranks = ranks,
                                                                  .bytes = static_cast<int64_t>(bytes),
                                                                  .begin_ns = trace::now_ns()}));
  }

  void issued() { transfer_.issued_ns = trace::now_ns(); }
  void wait_begins(c10d::Work& work);  // Throws what the work throws.
  void wait_ended();

 private:
  TransferSpan(std::shared_ptr<trace::Spans> spans, trace::Transfer transfer)
      : spans_(std::move(spans)), transfer_(std::move(transfer)) {}

  const std::shared_ptr<trace::Spans> spans_;
  trace::Transfer transfer_;
};

}  // namespace titan::comm
