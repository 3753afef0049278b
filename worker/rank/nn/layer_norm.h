#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

#include "worker/rank/nn/block.h"

namespace titan::nn {

// Normalizes the last dimension to mean 0 and variance 1, then scales and shifts it (arXiv 1607.06450):
// (x - mean(x)) / sqrt(var(x) + eps) * weight + bias. Statistics are in at least fp32.
class LayerNorm {
 public:
  // `fqn` is for example "encoder.layers.0.layer_norm1". The parameters are then its ".weight" and ".bias".
  LayerNorm(const Declare& declare, const std::string& fqn, int64_t dim, double eps);
  at::Tensor forward(const at::Tensor& input) const;  // [..., dim] -> [..., dim]

  Parameter& weight() const { return *weight_; }
  Parameter& bias() const { return *bias_; }

 private:
  Parameter* weight_;  // [dim]
  Parameter* bias_;    // [dim]
  double eps_;
};

}  // namespace titan::nn
