#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/nn/block.h"

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

// y = x W^T without bias.
class Linear {
 public:
  // `product` replaces the matrix product (low precision, split backward); it gets the input and the weight's
  // parameter.
  using Product = std::function<at::Tensor(const at::Tensor& input, const Parameter& weight)>;

  Linear(const Declare& declare, const std::string& fqn, int64_t in_features, int64_t out_features, Init init);
  at::Tensor forward(const at::Tensor& input) const;  // [..., in] -> [..., out]

  const Parameter& weight() const { return *weight_; }
  Seams seams;
  Product product;

 private:
  Parameter* weight_;  // [out, in]
};

class RmsNorm {
 public:
  RmsNorm(const Declare& declare, const std::string& fqn, int64_t dim, double eps);
  at::Tensor forward(const at::Tensor& input) const;  // [..., dim]

  const Parameter& weight() const { return *weight_; }
  Seams seams;

 private:
  Parameter* weight_;  // [dim]
  double eps_;
};

class Embedding {
 public:
  Embedding(const Declare& declare, const std::string& fqn, int64_t vocab_size, int64_t dim, Init init);
  at::Tensor forward(const at::Tensor& tokens) const;  // int64 [B, T] -> [B, T, D]

  const Parameter& weight() const { return *weight_; }
  Seams seams;
  // Replaces the look-up (a vocabulary split over ranks).
  std::function<at::Tensor(const at::Tensor& tokens, const Parameter& weight)> lookup;

 private:
  Parameter* weight_;  // [V, D]
};

}  // namespace titan::nn
