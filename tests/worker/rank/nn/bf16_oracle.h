#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

// Compares an operation in bf16 with plain fp64 of the same numbers, forward and backward.
namespace titan::testing {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<at::Tensor(const Tensors&)>;

// Draws numbers that bf16 holds exactly, in fp64.
inline at::Tensor rounded(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16).to(at::kDouble); }

// Returns the result and the gradients of all inputs, for a given gradient of the result.
inline Tensors results_of(const Tensors& leaves, const at::Tensor& grad, const Operation& operation) {
  Tensors results{operation(leaves)};
  const at::ScalarType type = results[0].scalar_type();
  const at::Tensor start = results[0].dim() == 0 ? grad.sum().to(type) : grad.to(type);
  for (at::Tensor& gradient : torch::autograd::grad({results[0]}, leaves, {start})) results.push_back(gradient);
  return results;
}

// Expects differences, relative to the largest exact value, of at most `roundings` roundings to bf16. An fp32 input and
// its gradient stay fp32, and results in fp32 are rounded only to that.
inline void expect_close(const Tensors& inputs, const at::Tensor& grad, const Operation& operation,
                         const Operation& plain, double roundings, const std::string& what) {
  const auto own_type = [](const at::Tensor& t) { return t.scalar_type() == at::kFloat ? at::kFloat : at::kBFloat16; };
  Tensors leaves, exact_leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().clone().to(own_type(input)).requires_grad_());
    exact_leaves.push_back(input.detach().clone().to(at::kDouble).requires_grad_());
  }
  const Tensors ours = results_of(leaves, grad, operation), exact = results_of(exact_leaves, grad, plain);
  ASSERT_EQ(ours.size(), exact.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].sizes(), exact[i].sizes()) << what << ", result " << i;
    if (i > 0) {
      EXPECT_EQ(ours[i].scalar_type(), own_type(inputs[i - 1])) << what;
    }
    if (exact[i].numel() == 0) continue;
    const double error = (ours[i].to(at::kDouble) - exact[i]).abs().max().item<double>();
    const double bound = ours[i].scalar_type() == at::kFloat ? 1e-5 : roundings / 256;
    EXPECT_LE(error, bound * exact[i].abs().max().item<double>() + 1e-6) << what << ", result " << i;
  }
}

// Checks each element of two tensors of one shape: at most `roundings` to bf16 of numbers no larger than `size`, in
// addition to sums whose error is far below one rounding.
inline void expect_rounded(const at::Tensor& result, const at::Tensor& exact, const at::Tensor& size, int roundings,
                           const std::string& what) {
  EXPECT_EQ(result.scalar_type(), at::kBFloat16) << what;
  ASSERT_EQ(result.sizes(), exact.sizes()) << what;
  if (exact.numel() == 0) return;
  const at::Tensor bound = size.abs() * (roundings / 256.0) + 1e-4;
  EXPECT_TRUE((result.to(at::kDouble) - exact).abs().le(bound).all().item<bool>()) << what;
}

// Expects one rounding.
inline void expect_rounded(const at::Tensor& result, const at::Tensor& exact, const std::string& what) {
  expect_rounded(result, exact, exact, 1, what);
}

}  // namespace titan::testing
