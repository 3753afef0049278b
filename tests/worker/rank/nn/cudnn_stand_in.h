#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>

// Stands in for LibTorch's operators of cuDNN's attention, which only CUDA has: CPU tensors of any type, the same
// arguments, shapes, layouts and preconditions, and materialized scores. Heads are [B, H, T, D], lse is [B, H, T, 1].
// Only one file of a test may include this.
namespace titan::testing {

struct CudnnCalled {
  int forward = 0, backward = 0;
};
inline CudnnCalled cudnn_called;

inline at::Tensor cudnn_heads(const at::Tensor& heads, int64_t count) {
  return heads.to(at::kDouble).repeat_interleave(count / heads.size(1), 1);
}
inline at::Tensor cudnn_scores(const at::Tensor& q, const at::Tensor& k, double scale, bool causal) {
  const at::Tensor scores = at::matmul(q.to(at::kDouble), cudnn_heads(k, q.size(1)).transpose(-1, -2)) * scale;
  if (!causal) return scores;
  const at::Tensor later = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
  return scores.masked_fill(later, -std::numeric_limits<double>::infinity());
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor,
                  at::Tensor>
cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias,
              bool wants_lse, double dropout, bool causal, bool debug, std::optional<double> scale) {
  TORCH_CHECK(!bias && wants_lse && dropout == 0 && !debug && scale);
  TORCH_CHECK(q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1, "heads without neighbours");
  ++cudnn_called.forward;
  const at::Tensor scores = cudnn_scores(q, k, *scale, causal);
  // Memory layout of q.
  const auto shape = q.stride(1) > q.stride(2) ? std::vector<int64_t>{0, 1, 2, 3} : std::vector<int64_t>{0, 2, 1, 3};
  const at::Tensor out =
      at::matmul(scores.softmax(-1), cudnn_heads(v, q.size(1))).to(q.scalar_type()).permute(shape).contiguous();
  const at::Tensor lse = scores.logsumexp(-1, /*keepdim=*/true);
  return {out.permute(shape),
          q.scalar_type() == at::kDouble ? lse : lse.to(at::kFloat),
          {},
          {},
          q.size(2),
          k.size(2),
          at::empty({}, at::kLong),
          at::empty({}, at::kLong),
          {}};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_backward(
    const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& lse, const at::Tensor& seed, const at::Tensor& offset, const at::Tensor& bias,
    const at::Tensor& cum_q, const at::Tensor& cum_k, int64_t, int64_t, double dropout, bool causal,
    std::optional<double> scale) {
  TORCH_CHECK(seed.defined() && offset.defined() && !bias.defined() && !cum_q.defined() && !cum_k.defined());
  TORCH_CHECK(dropout == 0 && scale && lse.is_contiguous() && lse.dim() == 4 && lse.size(3) == 1);
  TORCH_CHECK(grad_out.strides() == out.strides(), "a gradient whose layout differs from the output's");
  ++cudnn_called.backward;
  const int64_t heads = q.size(1), shared = k.size(1);
  const at::Tensor weights = (cudnn_scores(q, k, *scale, causal) - lse.to(at::kDouble)).exp();
  const at::Tensor grad = grad_out.to(at::kDouble), own = (grad * out).sum(-1, /*keepdim=*/true);
  const at::Tensor grad_scores = (at::matmul(grad, cudnn_heads(v, heads).transpose(-1, -2)) - own) * weights * *scale;
  const auto summed = [&](const at::Tensor& of) { return of.unflatten(1, {shared, -1}).sum(2).to(q.scalar_type()); };
  return {at::matmul(grad_scores, cudnn_heads(k, heads)).to(q.scalar_type()),
          summed(at::matmul(grad_scores.transpose(-1, -2), q.to(at::kDouble))),
          summed(at::matmul(weights.transpose(-1, -2), grad))};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_scaled_dot_product_cudnn_attention", cudnn_forward);
  library.impl("_scaled_dot_product_cudnn_attention_backward", cudnn_backward);
}

}  // namespace titan::testing
