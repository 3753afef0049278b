#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>
#include <vector>

// Stands in for LibTorch's flash attention operators, which only CUDA has: CPU tensors of any type, the same arguments,
// shapes and preconditions, and materialized scores. Heads are [B, T, H, D] with lse [B, H, T], or packed [tokens, H,
// D] with lse [H, tokens] and the spans' bounds as int32 [spans + 1]. Only one file of a test may include this.
namespace titan::testing {

struct FlashCalled {
  int forward = 0, backward = 0;
};
inline FlashCalled flash_called;

struct FlashMask {
  bool causal;
  int64_t left, right;

  // Returns bool [queries, keys] of a span, whose last query and key are aligned. Like the kernels, it ignores a window
  // as long as the keys.
  at::Tensor hidden(int64_t queries, int64_t keys) const {
    const at::Tensor ahead = at::arange(keys) - at::arange(keys - queries, keys).unsqueeze(1);
    at::Tensor hidden = at::zeros_like(ahead, at::kBool);
    if (causal || (right >= 0 && right < keys)) hidden.logical_or_(ahead.gt(causal ? 0 : right));
    return left >= 0 && left < keys ? hidden.logical_or_(ahead.lt(-left)) : hidden;
  }
};

// Calls visit(a, b) for each span: a selects its tokens [tokens, H, D] of q, k, v or o, and b its [H, tokens] of lse.
template <typename Visit>
void for_each_flash_span(const at::Tensor& q, const std::optional<at::Tensor>& cum_seq, int64_t longest,
                         const Visit& visit) {
  TORCH_CHECK(q.stride(-1) == 1 && q.size(-1) % 8 == 0 && q.size(-1) <= 256, "heads of ", q.sizes());
  if (!cum_seq || !cum_seq->defined()) {
    TORCH_CHECK(q.dim() == 4 && q.size(1) == longest, "spans of ", longest, " in ", q.sizes());
    for (int64_t span = 0; span < q.size(0); ++span) {
      const auto part = [span](const at::Tensor& t) { return t.select(0, span); };
      visit(part, part);
    }
    return;
  }
  TORCH_CHECK(q.dim() == 3 && cum_seq->scalar_type() == at::kInt && cum_seq->is_contiguous(), "packed ", q.sizes());
  const int* ends = cum_seq->const_data_ptr<int>();
  const int64_t spans = cum_seq->size(0) - 1;
  TORCH_CHECK(ends[0] == 0 && ends[spans] == q.size(0), "spans of ", ends[spans], " tokens in ", q.sizes());
  int64_t seen = 0;
  for (int64_t span = 0; span < spans; ++span) {
    const int64_t first = ends[span], length = ends[span + 1] - first;
    seen = std::max(seen, length);
    visit([=](const at::Tensor& t) { return t.narrow(0, first, length); },
          [=](const at::Tensor& t) { return t.narrow(1, first, length); });
  }
  TORCH_CHECK(seen == longest, "the longest span has ", seen, " tokens, not ", longest);
}

// Converts [tokens, Hkv, D] to [H, tokens, D] in float64.
inline at::Tensor flash_heads(const at::Tensor& tokens, int64_t heads) {
  return tokens.to(at::kDouble).transpose(0, 1).repeat_interleave(heads / tokens.size(1), 0);
}
inline at::Tensor flash_scores(const at::Tensor& q, const at::Tensor& k, double scale, const FlashMask& mask) {
  const at::Tensor scores = at::matmul(flash_heads(q, q.size(1)), flash_heads(k, q.size(1)).transpose(-1, -2)) * scale;
  return scores.masked_fill(mask.hidden(q.size(0), k.size(0)), -std::numeric_limits<double>::infinity());
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& cum_q,
    const std::optional<at::Tensor>& cum_k, int64_t max_q, int64_t max_k, double dropout, bool causal, bool debug,
    std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  TORCH_CHECK(dropout == 0 && !debug && cum_q.has_value() == cum_k.has_value());
  TORCH_CHECK(cum_q.has_value() ? max_q == max_k : k.size(1) == max_k, max_q, " queries, ", max_k, " keys");
  TORCH_CHECK(q.size(-1) == k.size(-1) && q.size(-1) == v.size(-1), "heads of unequal size");
  ++flash_called.forward;
  const at::ScalarType exact = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor lse = at::empty(
      q.dim() == 4 ? std::vector<int64_t>{q.size(0), q.size(2), q.size(1)} : std::vector<int64_t>{q.size(1), q.size(0)},
      q.options().dtype(exact));
  const FlashMask mask{causal, left.value_or(-1), right.value_or(-1)};
  for_each_flash_span(q, cum_q, max_q, [&](const auto& tokens, const auto& of_lse) {
    const at::Tensor scores = flash_scores(tokens(q), tokens(k), *scale, mask);
    tokens(out).copy_(at::matmul(scores.softmax(-1), flash_heads(tokens(v), q.size(-2))).transpose(0, 1));
    of_lse(lse).copy_(scores.logsumexp(-1));
  });
  return {out, lse, at::empty({2}, at::kLong), at::empty({}, at::kLong), at::Tensor()};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& lse, const at::Tensor& cum_q, const at::Tensor& cum_k, int64_t max_q, int64_t max_k,
    double dropout, bool causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale,
    std::optional<int64_t> left, std::optional<int64_t> right) {
  TORCH_CHECK(dropout == 0 && cum_q.defined() == cum_k.defined() && lse.is_contiguous());
  TORCH_CHECK(cum_q.defined() ? max_q == max_k : k.size(1) == max_k, max_q, " queries, ", max_k, " keys");
  TORCH_CHECK(grad_out.sizes() == q.sizes() && out.sizes() == q.sizes(), "gradients of other shapes");
  ++flash_called.backward;
  at::Tensor grad_q = at::empty(q.sizes(), q.options()), grad_k = at::empty(k.sizes(), k.options()),
             grad_v = at::empty(v.sizes(), v.options());
  const FlashMask mask{causal, left.value_or(-1), right.value_or(-1)};
  const int64_t heads = q.size(-2), shared = k.size(-2);
  const auto summed = [&](const at::Tensor& grad) { return grad.unflatten(0, {shared, -1}).sum(1).transpose(0, 1); };
  for_each_flash_span(q, cum_q, max_q, [&](const auto& tokens, const auto& of_lse) {
    const at::Tensor weights =
        (flash_scores(tokens(q), tokens(k), *scale, mask) - of_lse(lse).to(at::kDouble).unsqueeze(-1)).exp();
    const at::Tensor grad = flash_heads(tokens(grad_out), heads);
    const at::Tensor own = (grad * flash_heads(tokens(out), heads)).sum(-1, /*keepdim=*/true);
    const at::Tensor grad_scores =
        (at::matmul(grad, flash_heads(tokens(v), heads).transpose(-1, -2)) - own) * weights * *scale;
    tokens(grad_q).copy_(at::matmul(grad_scores, flash_heads(tokens(k), heads)).transpose(0, 1));
    tokens(grad_k).copy_(summed(at::matmul(grad_scores.transpose(-1, -2), flash_heads(tokens(q), heads))));
    tokens(grad_v).copy_(summed(at::matmul(weights.transpose(-1, -2), grad)));
  });
  return {grad_q, grad_k, grad_v};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", flash_forward);
  library.impl("_flash_attention_backward", flash_backward);
}

}  // namespace titan::testing
