#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace titan::trace {

// Counts floating-point operations (a multiply-add is two) of the matrix products, convolutions and fused attentions
// that the calling thread dispatches during the counter's lifetime. It includes backward passes on the CPU and threads
// with its at::ThreadLocalState. It counts at LibTorch's dispatcher, so that no code reports about itself. A thread may
// have one counter at a time.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  int64_t products() const { return counts_->products; }  // FLOPs of mm, addmm, bmm and baddbmm.
  // FLOPs of fused kernels, including the half that a causal mask hides.
  int64_t attentions() const { return counts_->attentions; }
  int64_t convolutions() const { return counts_->convolutions; }  // FLOPs of forward passes only.
  int64_t total() const { return products() + convolutions() + attentions(); }
  void reset() { counts_->products = counts_->convolutions = counts_->attentions = 0; }

 private:
  friend struct FlopCallback;
  struct Counts final : c10::DebugInfoBase {
    std::atomic<int64_t> products{0}, convolutions{0}, attentions{0};
  };

  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  const c10::DebugInfoGuard guard_{c10::DebugInfoKind::TEST_INFO, counts_};
  const uint64_t callback_;  // An at::CallbackHandle, whose header only the source needs.
};

}  // namespace titan::trace
