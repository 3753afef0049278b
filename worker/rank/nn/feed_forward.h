#pragma once

#include <string>

#include "worker/rank/nn/layers.h"

namespace titan::nn {

// SwiGLU: w2(silu(w1 x) * w3 x).
class FeedForward {
 public:
  // torchtitan draws w1 from one distribution and w2, w3 from the depth-scaled one.
  FeedForward(const Declare& declare, const std::string& fqn, int64_t dim, int64_t hidden, Init w1_init,
              Init depth_init);
  at::Tensor forward(const at::Tensor& input) const;  // [B, T, dim] -> [B, T, dim]

  Linear w1, w2, w3;
  Seams seams;                         // Around the whole sub-block.
  Projections project = project_each;  // w1 and w3 of the (gathered) input.
};

}  // namespace titan::nn
