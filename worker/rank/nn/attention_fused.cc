#include "worker/rank/nn/attention_fused.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>

#include <algorithm>
#include <optional>

#include "worker/rank/device/device_graphs.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/nn/attention_blocks.h"

namespace titan::nn {
namespace {

constexpr int64_t kFlashHeadStep = 8;
constexpr int64_t kMostHead = 256;

// Returns int32 [spans + 1], FlashCall::cum_seq, for rows that are cut into chunks of equal length, except for a
// shorter last chunk. It is computed on the device, so that a captured layer reads nothing from the host.
at::Tensor ends_of_chunks(int64_t rows, int64_t tokens, int64_t chunk, at::Device device) {
  const int64_t of_row = (tokens + chunk - 1) / chunk;
  const at::Tensor span = at::arange(rows * of_row + 1, at::TensorOptions(at::kInt).device(device));
  return span.div(of_row, "floor").mul_(tokens).add_(span.remainder(of_row), chunk);
}

// The call gets spans [spans, longest, H, D], or all tokens [tokens, H, D], and returns the logs of the denominators as
// [spans, H, longest] or [H, tokens].
struct FlashPlan final : AttentionPlan {
  FlashArguments arguments;
  double scale = 0;

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& sinks) const override {
    const int64_t size = head_size(q, v);
    const auto ends = arguments.cum_seq.defined() ? std::optional<at::Tensor>(arguments.cum_seq) : std::nullopt;
    const FlashCall& call = arguments.call;
    auto result = at::_flash_attention_forward(packed(q, size), packed(k, size), packed(v, size), ends, ends,
                                               call.longest, call.longest, /*dropout_p=*/0, only_causal(),
                                               /*return_debug_mask=*/false, scale, call.left, right());
    at::Tensor out = std::get<0>(result), lse = std::get<1>(result);
    if (sinks.defined()) {  // Adds one more key without value.
      const at::Tensor own = by_token(lse), together = at::logaddexp(own, sinks.to(lse.scalar_type()));
      out = (out * (own - together).exp_().unsqueeze(-1)).to(q.scalar_type());
      lse = by_token(together);
    }
    return {trim_heads(unpacked(out, q.sizes()), v.size(3)), lse};
  }

  AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& sinks, const BlockOutput& result) const override {
    const int64_t size = head_size(q, v);
    const FlashCall& call = arguments.call;
    const at::Tensor no_dropout = at::empty({2}, q.options().dtype(at::kUInt64));
    const at::Tensor grad = packed(grad_out, size), out = packed(result.out, size);
    auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
        grad, packed(q, size), packed(k, size), packed(v, size), out, result.lse.contiguous(), arguments.cum_seq,
        arguments.cum_seq, call.longest, call.longest, /*dropout_p=*/0, only_causal(), no_dropout, no_dropout, scale,
        call.left, right());
    return {unpacked(grad_q, q.sizes()).narrow(3, 0, q.size(3)), unpacked(grad_k, k.sizes()).narrow(3, 0, k.size(3)),
            unpacked(grad_v, v.sizes()).narrow(3, 0, v.size(3)),
            sinks.defined() ? grad_sinks(sinks, grad, out, result.lse) : at::Tensor()};
  }

 private:
  // Whether the kernel's causal mask hides all that is hidden.
  bool only_causal() const { return arguments.call.causal && arguments.call.left < 0; }
  // Returns the number of later keys that a query sees. -1: all.
  int64_t right() const { return arguments.call.causal ? 0 : -1; }
  // The kernel requires heads of queries, keys and values of equal size.
  static int64_t head_size(const at::Tensor& q, const at::Tensor& v) {
    const int64_t largest = std::max(q.size(3), v.size(3));
    return (largest + kFlashHeadStep - 1) / kFlashHeadStep * kFlashHeadStep;
  }
  // Packs [B, H, T, D], nearly always as a view.
  at::Tensor packed(const at::Tensor& heads, int64_t size) const {
    const at::Tensor tokens = pad_heads(heads, size).transpose(1, 2);
    if (arguments.cum_seq.defined()) return tokens.reshape({-1, heads.size(1), size});
    return tokens.reshape({arguments.call.spans, arguments.call.longest, heads.size(1), size});
  }
  static at::Tensor unpacked(const at::Tensor& tokens, at::IntArrayRef shape) {
    return tokens.reshape({shape[0], shape[2], shape[1], tokens.size(-1)}).transpose(1, 2);
  }
  // Moves heads last, and back.
  static at::Tensor by_token(const at::Tensor& lse) { return lse.transpose(-2, -1); }

  static at::Tensor grad_sinks(const at::Tensor& sinks, const at::Tensor& grad, const at::Tensor& out,
                               const at::Tensor& lse) {
    // Weight of the sink for each query.
    const at::Tensor weight = (sinks.to(lse.scalar_type()) - by_token(lse)).exp_();
    const at::Tensor own = (grad.to(lse.scalar_type()) * out).sum(-1);
    return (weight * own).flatten(0, -2).sum(0).neg_().to(sinks.scalar_type());
  }
};

}  // namespace

FlashCall plan_flash(const Spans& spans, int64_t window, int64_t rows) {
  FlashCall call;
  bool alike = true;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int64_t>& starts = spans.starts[spans.same_in_all_rows() ? 0 : row];
    for (size_t i = 0; i < starts.size(); ++i) {
      const int64_t length = (i + 1 == starts.size() ? spans.seq_len : starts[i + 1]) - starts[i];
      alike = alike && (call.longest == 0 || length == call.longest);
      call.longest = std::max(call.longest, length);
      call.cum_seq.push_back(static_cast<int32_t>(row * spans.seq_len + starts[i]));
    }
  }
  call.spans = static_cast<int64_t>(call.cum_seq.size());
  call.cum_seq.push_back(static_cast<int32_t>(rows * spans.seq_len));
  if (alike) call.cum_seq.clear();
  if (window > 0 && window < call.longest) call.left = window - 1;
  return call;
}

FlashArguments FlashCalls::find_or(const AttentionMask& mask, const std::function<FlashArguments()>& make) {
  const std::lock_guard lock(mutex_);
  for (const auto& [known, arguments] : known_) {
    if (known == mask) return arguments;
  }
  return known_.emplace_back(mask, make()).second;
}

bool can_use_flash_attention(const at::Tensor& q, int64_t v_size) {
  return q.is_cuda() && (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) &&
         std::max(q.size(3), v_size) <= kMostHead;
}

c10::intrusive_ptr<AttentionPlan> flash_plan(const AttentionInput& input, const MicrobatchContext& context) {
  const int64_t rows = input.q.size(0), tokens = input.q.size(2);
  const at::Device device = input.q.device();
  const AttentionMask& mask = input.mask;
  const bool documents = mask.documents && context.documents.defined();
  const auto make = [&] {
    FlashArguments made{
        plan_flash(spans_of(documents ? context.documents : at::Tensor(), mask.chunk, tokens), mask.window, rows)};
    made.call.causal = mask.causal;
    if (made.call.cum_seq.empty()) return made;
    made.cum_seq = documents ? device::copy_async(at::tensor(made.call.cum_seq, at::kInt), device)
                             : ends_of_chunks(rows, tokens, mask.chunk, device);
    return made;
  };
  auto plan = c10::make_intrusive<FlashPlan>();
  if (documents) {
    device::check_not_capturing("where documents end");  // Throws even if an earlier layer has read the documents.
    plan->arguments = context.flash_calls != nullptr ? context.flash_calls->find_or(mask, make) : make();
  } else {
    plan->arguments = make();
  }
  plan->scale = input.scale;
  plan->causal = mask.causal;
  return plan;
}

namespace {

constexpr int64_t kCudnn = 3;  // A value of LibTorch's sdp::SDPBackend, declared in a CUDA header.

// LibTorch caches cuDNN's plan of a backward pass under the layout of q, k and v only. Therefore the output's gradient
// must always have the layout of the output, which is q's.
at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.strides() == other.strides() ? tensor : at::empty_like(other).copy_(tensor);
}

struct CudnnPlan final : AttentionPlan {
  CudnnPlan(double scale_of_scores, bool is_causal) : scale(scale_of_scores) { causal = is_causal; }
  const double scale;

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& sinks) const override {
    auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, /*attn_bias=*/{}, /*compute_log_sumexp=*/true,
                                                          /*dropout_p=*/0, causal,
                                                          /*return_debug_mask=*/false, scale);
    return with_sinks({std::get<0>(result), std::get<1>(result).view({q.size(0), q.size(1), q.size(2)})}, sinks);
  }

  AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& sinks, const BlockOutput& result) const override {
    const at::Tensor no_dropout = at::empty({}, q.options().dtype(at::kLong));
    auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_cudnn_attention_backward(
        laid_out_as(grad_out, result.out), q, k, v, result.out, result.lse.contiguous().unsqueeze(3), no_dropout,
        no_dropout, /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, q.size(2), k.size(2), /*dropout_p=*/0, causal,
        scale);
    return {std::move(grad_q), std::move(grad_k), std::move(grad_v),
            sinks.defined() ? grad_sinks(sinks, grad_out, result) : at::Tensor()};
  }
};

}  // namespace

bool can_use_cudnn_attention(const AttentionInput& input) {
  return input.q.is_cuda() &&
         at::_fused_sdp_choice(input.q, input.k, input.v, /*attn_mask=*/{}, /*dropout_p=*/0, input.mask.causal,
                               input.scale, input.q.size(1) != input.k.size(1)) == kCudnn;
}

c10::intrusive_ptr<AttentionPlan> cudnn_plan(double scale, bool causal) {
  return c10::make_intrusive<CudnnPlan>(scale, causal);
}

}  // namespace titan::nn
