#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/rank/nn/block.h"
#include "worker/rank/nn/rms_norm.h"

namespace titan::nn {

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
