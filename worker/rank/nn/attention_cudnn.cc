#include "worker/rank/nn/attention_cudnn.h"

#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>

#include <utility>

#include "worker/rank/nn/attention_blocks.h"

namespace titan::nn {
namespace {

constexpr int64_t kCudnn = 3;  // Of LibTorch's sdp::SDPBackend, whose header is CUDA's.

// LibTorch keeps cuDNN's plan of a backward pass by the layout of q, k and v alone: that of gradients follows the
// output's, which follows q's.
at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.strides() == other.strides() ? tensor : at::empty_like(other).copy_(tensor);
}

struct CudnnPlan final : AttentionPlan {
  explicit CudnnPlan(double of) : scale(of) {}
  const double scale;

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& sinks) const override {
    auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, /*attn_bias=*/{}, /*compute_log_sumexp=*/true,
                                                          /*dropout_p=*/0, /*is_causal=*/true,
                                                          /*return_debug_mask=*/false, scale);
    return with_sinks({std::get<0>(result), std::get<1>(result).view({q.size(0), q.size(1), q.size(2)})}, sinks);
  }

  AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& sinks, const BlockOutput& result) const override {
    const at::Tensor no_dropout = at::empty({}, q.options().dtype(at::kLong));
    auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_cudnn_attention_backward(
        laid_out_as(grad_out, result.out), q, k, v, result.out, result.lse.contiguous().unsqueeze(3), no_dropout,
        no_dropout, /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, q.size(2), k.size(2), /*dropout_p=*/0,
        /*is_causal=*/true, scale);
    return {std::move(grad_q), std::move(grad_k), std::move(grad_v),
            sinks.defined() ? grad_sinks(sinks, grad_out, result) : at::Tensor()};
  }
};

}  // namespace

bool cudnn_takes(const AttentionInput& input) {
  return input.q.is_cuda() &&
         at::_fused_sdp_choice(input.q, input.k, input.v, /*attn_mask=*/{}, /*dropout_p=*/0,
                               /*is_causal=*/true, input.scale, input.q.size(1) != input.k.size(1)) == kCudnn;
}

c10::intrusive_ptr<AttentionPlan> cudnn_plan(double scale) { return c10::make_intrusive<CudnnPlan>(scale); }

}  // namespace titan::nn
