#pragma once

// Layers that the encoders have and language models do not. Their names in weights are FQN.weight and FQN.bias.

#include <ATen/ATen.h>

#include <string>

#include "common/plan/encoders/options.h"
#include "worker/rank/nn/block.h"

namespace titan::encoders {

// Returns the activation of x, [...].
at::Tensor activate(Activation activation, const at::Tensor& x);

// Returns `declare` with a frozen parameter as result.
nn::Declare frozen(nn::Declare declare);

// Normalizes groups of neighbouring channels over all places (arXiv 1803.08494), in fp32 for narrower types.
class GroupNorm {
 public:
  GroupNorm(const nn::Declare& declare, const std::string& fqn, int64_t channels, int64_t groups, double eps);
  at::Tensor forward(const at::Tensor& input) const;  // [B, channels, h, w] -> [B, channels, h, w]

 private:
  const nn::Parameter* weight_;  // [channels]
  const nn::Parameter* bias_;    // [channels]
  int64_t groups_;
  double eps_;
};

// A convolution with bias and a square kernel. Random weights are drawn as torch.nn.Conv2d draws them.
class Conv2d {
 public:
  Conv2d(const nn::Declare& declare, const std::string& fqn, int64_t in_channels, int64_t out_channels, int64_t kernel,
         int64_t padding, int64_t stride = 1);
  at::Tensor forward(const at::Tensor& input) const;  // [B, in, h, w] -> [B, out, h', w']

 private:
  const nn::Parameter* weight_;  // [out, in, kernel, kernel]
  const nn::Parameter* bias_;    // [out]
  int64_t padding_, stride_;
};

}  // namespace titan::encoders
