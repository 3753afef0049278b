#pragma once

// Linear, RmsNorm and Embedding are the layers that blocks consist of. Seams are the places for collectives around
// them.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/block.h"

namespace titan::nn {

// Returns x / sqrt(mean(x x) + eps) over the last dimension of x [..., dim], times the weight [dim] if it is defined:
// [..., dim]. bf16 uses Titan's own kernel if it is chosen (worker/rank/kernels/choice.h), which saves the input and
// one factor per row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The residual stream and the norm that the next branch reads: sum = x + residual, or x itself if `residual` is
// undefined, and norm = rms_norm(sum), all [..., dim]. Titan's own kernel reads memory once forward and once backward,
// where it adds the gradients of `sum` and `norm`. Results are rounded like those of two operations, but the gradient
// only once.
struct SumAndNorm {
  at::Tensor sum, norm;  // [..., dim] each.
};
// x and residual are [..., dim]. weight is [dim] or undefined.
SumAndNorm sum_and_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps);

// [...] -> [...]. Collectives may change the size of a dim.
using Transform = std::function<at::Tensor(const at::Tensor&)>;

// Places where `parallel` puts collectives around a layer. An empty function is the identity.
struct Seams {
  Transform input;
  Transform output;
};

// Applies `transform` to value [...].
inline at::Tensor through(const Transform& transform, const at::Tensor& value) {
  return transform ? transform(value) : value;
}

// Returns the type for sums and other sensitive arithmetic on numbers of `type`: fp64 for fp64, else fp32.
at::ScalarType accumulate_type(at::ScalarType type);

// Computes y = x W^T, plus a bias if it has one.
class Linear {
 public:
  // Replaces the matrix product, to overlap communication. It gets the input [..., in] and the weight's parameter, and
  // returns the product [..., out] without bias. The parameter decides how operands are rounded (matmul_recipe.h).
  using Product = std::function<at::Tensor(const at::Tensor& input, const Parameter& weight)>;

  // `fqn` is the weight's name, such as "layers.0.attention.wq.weight". The bias is then "layers.0.attention.wq.bias".
  Linear(const Declare& declare, const std::string& fqn, int64_t in_features, int64_t out_features, Init init,
         const Init* bias_init = nullptr);
  at::Tensor forward(const at::Tensor& input) const;  // [..., in] -> [..., out]

  Parameter& weight() const { return *weight_; }
  // [out]. Null: none. Added after seams.output, because it is not a partial sum on each rank.
  Parameter* bias() const { return bias_; }
  Seams seams;
  Product product;

 private:
  Parameter* weight_;          // [out, in]
  Parameter* bias_ = nullptr;  // [out]
};

// Computes several projections of one input [..., in], one result [..., out] each, in order. `parallel` replaces it to
// overlap the gathering of the input with the products.
using Projections = std::function<std::vector<at::Tensor>(const at::Tensor& input, const std::vector<const Linear*>&)>;
std::vector<at::Tensor> project_each(const at::Tensor& input, const std::vector<const Linear*>& layers);

class RmsNorm {
 public:
  // `offset` is added to the weight. Together they start at 1 if the offset is 0 or 1.
  RmsNorm(const Declare& declare, const std::string& fqn, int64_t dim, double eps, double offset = 0);
  at::Tensor forward(const at::Tensor& input) const;  // [..., dim] -> [..., dim]
  // Returns the sum input + residual (undefined: the input) and its norm, all [..., dim]. The returned sum does not
  // pass through the seams.
  SumAndNorm forward_sum(const at::Tensor& input, const at::Tensor& residual) const;

  Parameter& weight() const { return *weight_; }
  Seams seams;
  // The ranks that each have an equal part of `dim` and of the weight. Null: this rank has all. Must outlive the layer.
  const comm::Group* ranks = nullptr;

 private:
  bool wide() const { return offset_ != 0 || ranks != nullptr; }

  Parameter* weight_;  // [dim]
  double eps_, offset_;
};

class Embedding {
 public:
  Embedding(const Declare& declare, const std::string& fqn, int64_t vocab_size, int64_t dim, Init init);
  at::Tensor forward(const at::Tensor& tokens) const;  // int64 [B, T] -> [B, T, D]

  Parameter& weight() const { return *weight_; }
  Seams seams;
  // Replaces the lookup (a vocabulary split over ranks): tokens int64 [B, T] -> [B, T, D].
  std::function<at::Tensor(const at::Tensor& tokens, const Parameter& weight)> lookup;

 private:
  Parameter* weight_;  // [V, D]
};

}  // namespace titan::nn
