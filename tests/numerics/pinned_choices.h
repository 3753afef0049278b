#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace titan::testing {

// While an object lives, routers of this thread choose these experts, one tensor [tokens, top_k] per layer in order,
// instead of the best by their own scores. In another precision some tokens' scores change order, and results of
// different experts cannot be compared. It acts below autograd, so all of a router's own arithmetic stays. Only one
// object may exist at a time.
class PinnedChoices {
 public:
  PinnedChoices(std::vector<at::Tensor> choices, int64_t num_experts);
  ~PinnedChoices();
  PinnedChoices(const PinnedChoices&) = delete;
  PinnedChoices& operator=(const PinnedChoices&) = delete;

  bool all_taken() const { return next_ == choices_.size(); }

 private:
  friend struct PinnedTopk;

  const std::vector<at::Tensor> choices_;
  const int64_t num_experts_;
  size_t next_ = 0;
};

}  // namespace titan::testing
