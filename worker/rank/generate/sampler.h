#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace titan::generate {

struct SamplingOptions {
  double temperature = 0;  // Divides the logits. 0: always the most likely token.
  int64_t top_k = 0;       // Only the k most likely tokens. 0: all.
  double top_p = 1;        // Then only the smallest set with this total probability.
  uint64_t seed = 0;
};
// Errors: InvalidArgument, which names the option and its valid values.
absl::Status check(const SamplingOptions& options);

// Returns a number in [0, 1) that depends only on these three: the same on any mesh and in any batch.
double draw(uint64_t seed, int64_t prompt, int64_t token);

inline constexpr int64_t kNoToken = -1;  // For a row with a NaN or infinite logit, which has no most likely token.

// Chooses the next token of each row of `logits` [B, V], or kNoToken. `draws`: a number in [0, 1) per row. Of equal
// logits the first is the more likely one. Applies temperature, top-k and top-p in this order, like transformers.
std::vector<int64_t> sample(const at::Tensor& logits, const SamplingOptions& options, const std::vector<double>& draws);

}  // namespace titan::generate
