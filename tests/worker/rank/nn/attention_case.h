#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <ostream>
#include <vector>

#include "tests/testing/draw.h"
#include "tests/worker/rank/nn/plain_attention.h"

// Compares attention of random rows, under any mask, with the oracle.
namespace titan::testing {

struct AttentionCase {
  int64_t rows = 2, kv_heads = 2, sharing = 1, tokens = 40, head = 8, v_head = 8;
  nn::AttentionMask mask;
  bool sinks = false;
  at::ScalarType type = at::kDouble;
  double softcap = 0;
};

inline std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  return out << c.rows << " rows, " << c.sharing << " x " << c.kv_heads << " heads of " << c.head << " and " << c.v_head
             << ", " << c.tokens << " tokens, window " << c.mask.window << ", chunk " << c.mask.chunk << ", documents "
             << c.mask.documents << ", causal " << c.mask.causal << ", sinks " << c.sinks << ", " << c.type
             << ", softcap " << c.softcap;
}

// Draws heads [rows, heads, tokens, size] in the projections' memory layout: tokens before heads.
inline at::Tensor heads_of(const AttentionCase& c, int64_t heads, int64_t size) {
  return at::randn({c.rows, c.tokens, heads, size}, at::kDouble).to(c.type).transpose(1, 2);
}

inline nn::AttentionInput input_of(const AttentionCase& c) {
  return {.q = heads_of(c, c.kv_heads * c.sharing, c.head),
          .k = heads_of(c, c.kv_heads, c.head),
          .v = heads_of(c, c.kv_heads, c.v_head),
          .scale = 0.3,
          .softcap = c.softcap,
          .mask = c.mask,
          .sinks = c.sinks ? at::randn({c.kv_heads * c.sharing}, at::kDouble).to(c.type) : at::Tensor()};
}

using AttentionResults = std::vector<at::Tensor>;  // Output, then the gradients of q, k, v and sinks.

// Runs both passes in `type`. `grad_out`: [B, H, T, Dv], like the output.
template <typename Attention>
AttentionResults run_attention(nn::AttentionInput input, at::ScalarType type, const at::Tensor& grad_out,
                               Attention&& attention) {
  std::vector<at::Tensor> leaves;
  for (at::Tensor* tensor : {&input.q, &input.k, &input.v, &input.sinks}) {
    if (!tensor->defined()) continue;
    *tensor = tensor->detach().to(type).requires_grad_();
    leaves.push_back(*tensor);
  }
  AttentionResults results{attention(input)};
  for (at::Tensor& gradient : torch::autograd::grad({results[0]}, leaves, {grad_out.to(type)})) {
    results.push_back(std::move(gradient));
  }
  return results;
}

// Compares both passes of `attention` with the oracle in float64. The tolerance is relative to one plus the largest
// value of each result.
inline void expect_exact(
    const AttentionCase& c, double tolerance,
    const std::function<at::Tensor(const nn::AttentionInput&, const nn::MicrobatchContext&)>& attention) {
  const nn::AttentionInput input = input_of(c);
  nn::MicrobatchContext context;
  if (c.mask.documents) context.documents = random_documents(c.rows, c.tokens, 0.1);
  const at::Tensor grad_out = at::randn({c.rows, c.kv_heads * c.sharing, c.tokens, c.v_head}, at::kDouble).to(c.type);
  const AttentionResults ours =
      run_attention(input, c.type, grad_out, [&](const nn::AttentionInput& in) { return attention(in, context); });
  const AttentionResults oracle = run_attention(input, at::kDouble, grad_out, [&](const nn::AttentionInput& in) {
    return plain_attention(in, context.documents);
  });
  const char* names[] = {"output", "grad q", "grad k", "grad v", "grad sinks"};
  ASSERT_EQ(ours.size(), oracle.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), c.type);
    const double error = (ours[i].to(at::kDouble) - oracle[i]).abs().max().item<double>();
    EXPECT_LE(error, tolerance * (1 + oracle[i].abs().max().item<double>())) << names[i] << " of " << c;
  }
}

inline AttentionCase draw_attention(Draw& pick, std::initializer_list<int64_t> heads,
                                    std::initializer_list<int64_t> v_heads) {
  AttentionCase drawn{
      .rows = pick({1, 2, 3}),
      .kv_heads = pick({1, 2}),
      .sharing = pick({1, 3}),
      .tokens = pick({1, 37, 64, 200, 301}),
      .head = pick(heads),
      .v_head = pick(v_heads),
      .mask = {.window = pick({0, 0, 1, 5, 64, 150}), .chunk = pick({0, 0, 16, 77}), .documents = pick({0, 1}) == 1},
      .sinks = pick({0, 1}) == 1};
  if (pick({0, 0, 1}) == 1)
    drawn.mask = {.chunk = drawn.mask.chunk, .documents = drawn.mask.documents, .causal = false};
  return drawn;
}

}  // namespace titan::testing
