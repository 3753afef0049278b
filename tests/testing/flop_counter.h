#pragma once

#include <cstdint>

namespace titan::testing {

// Floating-point operations (a multiplication and an addition are two) of the matrix products and fused attentions that
// the calling thread dispatches during the counter's life, its backward passes on the CPU included. Counted where the
// operators enter LibTorch's dispatcher, so that nothing reports about itself. One at a time in a thread.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  int64_t products() const { return products_; }      // mm, addmm, bmm, baddbmm
  int64_t attentions() const { return attentions_; }  // Fused kernels; the half that a causal mask hides counts too.
  int64_t total() const { return products_ + attentions_; }
  void reset() { products_ = attentions_ = 0; }

 private:
  friend struct FlopCallback;

  uint64_t handle_ = 0;
  int64_t products_ = 0;
  int64_t attentions_ = 0;
};

}  // namespace titan::testing
