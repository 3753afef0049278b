#pragma once

// The parts of the autoencoder (arXiv 2112.10752). Their parameters' names are those of Black Forest Labs' files. They
// record no graph and reuse the memory of intermediate results.

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "worker/rank/model/encoders/layers.h"
#include "worker/rank/nn/block.h"

namespace titan::encoders {

inline constexpr double kGroupNormEps = 1e-6;

// x + conv2(swish(norm2(conv1(swish(norm1(x)))))), where x passes a 1x1 convolution if the numbers of channels differ.
class ResnetBlock {
 public:
  ResnetBlock(const nn::Declare& declare, const std::string& fqn, int64_t in_channels, int64_t out_channels,
              int64_t groups);
  at::Tensor forward(const at::Tensor& input) const;  // [B, in, h, w] -> [B, out, h, w]

 private:
  GroupNorm norm1_;
  Conv2d conv1_;
  GroupNorm norm2_;
  Conv2d conv2_;
  std::optional<Conv2d> shortcut_;
};

// Attention of all places to all places, with one head of all channels, added to the input. LibTorch's fused attention
// holds no [h w, h w] logits on a CPU, and in bf16 or fp32 none on a GPU.
class PlaceAttention {
 public:
  PlaceAttention(const nn::Declare& declare, const std::string& fqn, int64_t channels, int64_t groups);
  at::Tensor forward(const at::Tensor& input) const;  // [B, channels, h, w] -> [B, channels, h, w]

 private:
  GroupNorm norm_;
  Conv2d q_, k_, v_, proj_out_;
};

// The middle of both halves, at the lowest resolution.
class Middle {
 public:
  Middle(const nn::Declare& declare, const std::string& fqn, int64_t channels, int64_t groups);
  at::Tensor forward(const at::Tensor& input) const;  // [B, channels, h, w] -> [B, channels, h, w]

 private:
  ResnetBlock block_1_;
  PlaceAttention attention_;
  ResnetBlock block_2_;
};

// Halves the resolution by a convolution, after a row and a column of zeros at the right and the bottom only.
class Downsample {
 public:
  Downsample(const nn::Declare& declare, const std::string& fqn, int64_t channels);
  at::Tensor forward(const at::Tensor& input) const;  // [B, channels, 2 h, 2 w] -> [B, channels, h, w]

 private:
  Conv2d conv_;
};

// Doubles the resolution: each place four times, then a convolution.
class Upsample {
 public:
  Upsample(const nn::Declare& declare, const std::string& fqn, int64_t channels);
  at::Tensor forward(const at::Tensor& input) const;  // [B, channels, h, w] -> [B, channels, 2 h, 2 w]

 private:
  Conv2d conv_;
};

// The end of both halves: conv(swish(norm(x))).
class OutLayer {
 public:
  OutLayer(const nn::Declare& declare, const std::string& fqn, int64_t in_channels, int64_t out_channels,
           int64_t groups);
  at::Tensor forward(const at::Tensor& input) const;  // [B, in, h, w] -> [B, out, h, w]

 private:
  GroupNorm norm_;
  Conv2d conv_;
};

}  // namespace titan::encoders
