#pragma once

// Products with weights as autograd functions, dense or grouped by expert, with weight gradients that can be deferred.
// That is the exact split of the backward pass that zero-bubble pipelines need (arXiv 2401.10241): a product computes
// its input's gradient at once, because the previous stage waits for it, and defers its weight's gradient, which only
// the optimizer waits for.

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "worker/rank/nn/block.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

// A weight's gradient that is still to be computed. `compute` returns it, [...] of the parameter's shape. It needs
// neither the graph nor the weight, only tensors that it holds until it is destroyed.
struct DeferredGradient {
  const Parameter* parameter = nullptr;
  std::function<at::Tensor()> compute;
};
using GradientQueue = std::vector<DeferredGradient>;

// Shared by the parameters of one pipeline stage (Parameter::deferred): where the current backward pass puts weight
// gradients. At most one backward pass of a stage runs at a time. Forward passes may run alongside.
class DeferredGradients {
 public:
  // Between open() and close(), weight gradients go to `queue`. At other times they are computed at once.
  void open(GradientQueue& queue) { queue_ = &queue; }
  void close() { queue_ = nullptr; }
  GradientQueue* queue() const { return queue_; }

 private:
  GradientQueue* queue_ = nullptr;
};

// Returns the gradient, [...] of the parameter's shape, or an undefined tensor if it was deferred. Call it in the
// backward function of an operation that multiplies by a weight, and return its result there.
at::Tensor compute_or_defer(const Parameter& parameter, std::function<at::Tensor()> compute);

// Returns input [..., in] times the transposed weight [out, in], plus its adapter's product: [..., out].
at::Tensor matrix_product(const at::Tensor& input, const Parameter& weight);
// The same for several weights of one recipe (matmul_recipe.h), with one result [..., out] each, in order. The
// gradients of the input are summed as they are computed, in Titan's kernels without rounding between product and sum.
std::vector<at::Tensor> matrix_products(const at::Tensor& input, const std::vector<const Parameter*>& parameters);

// Adds the weight's adapter to product [..., out] of input [..., in] with the weight alone. Without an adapter it
// returns `product` itself.
at::Tensor adapted(const at::Tensor& product, const at::Tensor& input, const Parameter& weight);

// Returns [n, out]: x [n, in] times each group's transposed weight [groups, out, in], plus bias_factor times its bias
// [groups, out], plus its adapter's product. The bias's gradient is not multiplied: with a factor of 1 / ranks the
// ranks together add one whole bias, and each has its whole gradient. No weight is copied, and its storage may be freed
// between forward and backward. Weight gradients go through compute_or_defer().
at::Tensor grouped_product(const at::Tensor& x, const Parameter& weight, const Parameter* bias, double bias_factor,
                           const RowGroups& groups);

}  // namespace titan::nn
