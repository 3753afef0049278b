#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace titan::testing {

// While it lives, routers of this thread choose these experts, a tensor [tokens, top_k] a layer in their order, instead
// of the best by their own scores: in another precision some tokens' scores change places, and what follows from other
// experts says nothing about the rest. Below autograd, so all of a router's own arithmetic stays. One at a time.
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
