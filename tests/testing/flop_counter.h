#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace titan::testing {

// Floating-point operations (a multiplication and an addition are two) of the matrix products and fused attentions that
// the calling thread dispatches during the counter's life, its backward passes on the CPU included, and threads that
// work on with its at::ThreadLocalState. Counted where the operators enter LibTorch's dispatcher, so that nothing
// reports about itself. One at a time in a thread.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  int64_t products() const { return counts_->products; }  // mm, addmm, bmm, baddbmm
  // Fused kernels; the half that a causal mask hides counts too.
  int64_t attentions() const { return counts_->attentions; }
  int64_t total() const { return products() + attentions(); }
  void reset() { counts_->products = counts_->attentions = 0; }

 private:
  friend struct FlopCallback;
  struct Counts final : c10::DebugInfoBase {
    std::atomic<int64_t> products{0}, attentions{0};
  };

  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  const c10::DebugInfoGuard guard_{c10::DebugInfoKind::TEST_INFO, counts_};
  const uint64_t callback_;  // at::CallbackHandle, whose header only the source needs.
};

}  // namespace titan::testing
