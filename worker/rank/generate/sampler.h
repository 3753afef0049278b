#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace titan::generate {

struct SamplingOptions {
  double temperature = 0;  // Divides the logits; 0: the likeliest token, always.
  int64_t top_k = 0;       // Only the k likeliest; 0: all.
  double top_p = 1;        // Of them only the fewest that have this much of the probability together.
  uint64_t seed = 0;
};
// InvalidArgument names the option and what it may be.
absl::Status check(const SamplingOptions& options);

// A number in [0, 1) that depends on these three alone: the same on any mesh and in any batch.
double draw(uint64_t seed, int64_t prompt, int64_t token);

inline constexpr int64_t kNoToken = -1;  // Of a row with a logit that is NaN or infinite: nothing is likeliest there.

// The next token of each row of logits [B, V], or kNoToken; `draws`: a number in [0, 1) for each. Of equal logits the
// first counts as likelier. Temperature, top-k and top-p in this order, as transformers applies them.
std::vector<int64_t> sample(const at::Tensor& logits, const SamplingOptions& options, const std::vector<double>& draws);

}  // namespace titan::generate
