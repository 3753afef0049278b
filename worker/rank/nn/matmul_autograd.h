#pragma once

// Products with weights as autograd functions, dense or grouped by expert, whose weight gradients can be left for
// later. That is the exact split of the backward pass that zero-bubble pipelines need (arXiv 2401.10241): a product
// with a weight gives its input's gradient at once, because the stage before waits for it, and leaves its weight's
// gradient, which only the optimizer waits for.

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "worker/rank/nn/block.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

// A weight's gradient that is still to be computed. `compute` needs neither the graph nor the weight: only tensors that
// it holds, until it is destroyed.
struct DeferredGradient {
  const Parameter* parameter = nullptr;
  std::function<at::Tensor()> compute;
};
using GradientQueue = std::vector<DeferredGradient>;

// What the parameters of one pipeline stage share (Parameter::deferred): where the backward pass that is running leaves
// weight gradients. At most one backward pass of a stage runs at a time; forward passes may run beside it.
class DeferredGradients {
 public:
  // Between open() and close(), weight gradients go to `queue`; at other times they are computed at once.
  void open(GradientQueue& queue) { queue_ = &queue; }
  void close() { queue_ = nullptr; }
  GradientQueue* queue() const { return queue_; }

 private:
  GradientQueue* queue_ = nullptr;
};

// For the backward pass of anything that multiplies by a weight: the gradient, or an undefined tensor when it was left
// for later. Autograd may return either.
at::Tensor compute_or_defer(const Parameter& parameter, std::function<at::Tensor()> compute);

// input [..., in] times the transposed weight [out, in]: [..., out], and what the weight's adapter adds.
at::Tensor matrix_product(const at::Tensor& input, const Parameter& weight);
// One result for each weight, in order; weights of one recipe (product_recipe.h). The gradients of the input are summed
// as they are computed, in Titan's kernels without a rounding between product and sum.
std::vector<at::Tensor> matrix_products(const at::Tensor& input, const std::vector<const Parameter*>& parameters);

// A product of `input` with this weight alone, and what its adapter adds; the product itself when it has none.
at::Tensor adapted(const at::Tensor& product, const at::Tensor& input, const Parameter& weight);

// x [n, in] times each group's transposed weight [groups, out, in], plus bias_factor times its bias [groups, out]:
// [n, out], and what the weight's adapter adds. The bias's gradient is not multiplied: with a factor of 1 / ranks the
// ranks add one whole bias together, and each has its whole gradient. No copy of a weight is made, and the weight's
// storage may be freed between forward and backward. Weight gradients go through compute_or_defer.
at::Tensor grouped_product(const at::Tensor& x, const Parameter& weight, const Parameter* bias, double bias_factor,
                           const RowGroups& groups);

}  // namespace titan::nn
