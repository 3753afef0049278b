#pragma once

// Linear, RmsNorm and Embedding are the layers that blocks are built of; Seams are the places where collectives go
// around them.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/rank/nn/block.h"

namespace titan::nn {

// x / sqrt(mean(x x) + eps) over the last dimension, times the weight [dim] where it is defined. bf16 goes to
// Titan's own kernel where it is chosen (worker/rank/kernels/choice.h): it keeps the input and one factor a row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// What a layer goes on with beside its branch, and the norm that the branch reads: sum = x + residual [..., dim], or x
// itself where that is undefined, and rms_norm(sum). By Titan's own kernel it is one pass over memory forward, and one
// backward in which the gradients that come by both ways meet; results are rounded as those of the two operations are,
// the gradient once.
struct SumAndNorm {
  at::Tensor sum, norm;
};
SumAndNorm sum_and_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps);

using Transform = std::function<at::Tensor(const at::Tensor&)>;

// Where `parallel` puts collectives around a layer; an empty function is the identity.
struct Seams {
  Transform input;
  Transform output;
};

inline at::Tensor through(const Transform& transform, const at::Tensor& value) {
  return transform ? transform(value) : value;
}

// "Upcast" everywhere in the model: at least fp32, and fp64 stays fp64.
at::ScalarType accumulate_type(at::ScalarType type);

// y = x W^T, plus a bias when it has one.
class Linear {
 public:
  // `product` replaces the matrix product (overlapped communication); it gets the input and the weight's parameter, and
  // returns the product without bias. How operands are rounded is the parameter's own matter (product_recipe.h).
  using Product = std::function<at::Tensor(const at::Tensor& input, const Parameter& weight)>;

  // `fqn` is the weight's name: "layers.0.attention.wq.weight"; the bias is "layers.0.attention.wq.bias".
  Linear(const Declare& declare, const std::string& fqn, int64_t in_features, int64_t out_features, Init init,
         const Init* bias_init = nullptr);
  at::Tensor forward(const at::Tensor& input) const;  // [..., in] -> [..., out]

  Parameter& weight() const { return *weight_; }
  Parameter* bias() const {
    return bias_;
  }  // Null: none. Added after seams.output: rank by rank it is not a partial sum.
  Seams seams;
  Product product;

 private:
  Parameter* weight_;          // [out, in]
  Parameter* bias_ = nullptr;  // [out]
};

// Several projections of one input, one result each, in order. `parallel` replaces it to overlap the gathering of the
// input with the products.
using Projections = std::function<std::vector<at::Tensor>(const at::Tensor& input, const std::vector<const Linear*>&)>;
std::vector<at::Tensor> project_each(const at::Tensor& input, const std::vector<const Linear*>& layers);

class RmsNorm {
 public:
  RmsNorm(const Declare& declare, const std::string& fqn, int64_t dim, double eps);
  at::Tensor forward(const at::Tensor& input) const;  // [..., dim]
  // The norm of input + residual (undefined: of the input), and that sum, which seams do not see.
  SumAndNorm forward_sum(const at::Tensor& input, const at::Tensor& residual) const;

  Parameter& weight() const { return *weight_; }
  Seams seams;

 private:
  Parameter* weight_;  // [dim]
  double eps_;
};

class Embedding {
 public:
  Embedding(const Declare& declare, const std::string& fqn, int64_t vocab_size, int64_t dim, Init init);
  at::Tensor forward(const at::Tensor& tokens) const;  // int64 [B, T] -> [B, T, D]

  Parameter& weight() const { return *weight_; }
  Seams seams;
  // Replaces the look-up (a vocabulary split over ranks).
  std::function<at::Tensor(const at::Tensor& tokens, const Parameter& weight)> lookup;

 private:
  Parameter* weight_;  // [V, D]
};

}  // namespace titan::nn
