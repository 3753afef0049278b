#include "worker/rank/nn/attention_kernel.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "worker/rank/nn/attention_blocks.h"
#include "worker/rank/nn/attention_ranges.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/saved_activations.h"

namespace titan::nn {
namespace {

// Returns shapes without values, for dry runs (use_meta_kernels()).
class MetaAttentionKernel final : public AttentionKernel {
 public:
  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band&) override {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v);
    return {out, lse};
  }
  AttentionBlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const BlockOutput& merged, const Band&) override {
    auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, q, k, v, merged.out, merged.lse, /*dropout_p=*/0, /*is_causal=*/false);
    return {grad_q, grad_k, grad_v};
  }
};

class PlainAttentionKernel final : public AttentionKernel {
 public:
  explicit PlainAttentionKernel(double scale) : scale_(scale) {}

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) override {
    const at::Tensor all = scores(q, k, band);
    const at::Tensor lse = all.logsumexp(-1);
    return {at::matmul((all - lse.unsqueeze(-1)).exp_(), wide(v, q.size(1))).to(q.scalar_type()), lse};
  }

  AttentionBlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const BlockOutput& merged, const Band& band) override {
    const at::Tensor weights = (scores(q, k, band) - merged.lse.unsqueeze(-1)).exp_();  // [B, H, Tq, Tk]
    const at::Tensor grad = wide(grad_out, q.size(1));
    const at::Tensor grad_v = at::matmul(weights.transpose(-1, -2), grad);
    const at::Tensor own = (grad * merged.out).sum(-1, /*keepdim=*/true);
    const at::Tensor grad_scores =
        at::matmul(grad, wide(v, q.size(1)).transpose(-1, -2)).sub_(own).mul_(weights).mul_(scale_);
    return {at::matmul(grad_scores, wide(k, q.size(1))).to(q.scalar_type()),
            narrow(at::matmul(grad_scores.transpose(-1, -2), wide(q, q.size(1))), k), narrow(grad_v, v)};
  }

 private:
  // Returns each query head's key or value head, [B, H, T, D], in at least fp32.
  static at::Tensor wide(const at::Tensor& heads, int64_t query_heads) {
    const at::Tensor exact = heads.to(accumulate_type(heads.scalar_type()));
    return heads.size(1) == query_heads ? exact : exact.repeat_interleave(query_heads / heads.size(1), 1);
  }
  // Sums over the query heads that share a head.
  static at::Tensor narrow(const at::Tensor& grad, const at::Tensor& heads) {
    const at::Tensor summed = grad.size(1) == heads.size(1) ? grad : grad.unflatten(1, {heads.size(1), -1}).sum(2);
    return summed.to(heads.scalar_type());
  }
  at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const Band& band) {
    at::Tensor all = at::matmul(wide(q, q.size(1)), wide(k, q.size(1)).transpose(-1, -2)).mul_(scale_);
    if (!band.cuts_before(q.size(2)) && !band.cuts_after(k.size(2))) return all;
    return all.add_(mask_.get(band, q.size(2), k.size(2), all.options()));
  }

  const double scale_;
  BandMask mask_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_plain_attention_kernel(double scale) {
  return std::make_unique<PlainAttentionKernel>(scale);
}

std::unique_ptr<AttentionKernel> make_attention_kernel(const at::Tensor& q, int64_t v_size, const ScoreForm& scores) {
  const double scale = scores.scale;
  if (scores.softcap > 0) return make_softcap_attention_kernel(scores);
  if (q.is_meta()) return std::make_unique<MetaAttentionKernel>();
  if (can_use_range_attention(q, v_size)) return make_ranges_attention_kernel(scale);
  if (q.is_cpu()) return make_cpu_attention_kernel(scale);
  TORCH_CHECK(q.is_cuda(), "attention: no kernel for tensors on ", q.device());
  return q.scalar_type() == at::kDouble ? make_plain_attention_kernel(scale) : make_cuda_attention_kernel(scale);
}

const at::Tensor& BandMask::get(const Band& band, int64_t queries, int64_t keys, const at::TensorOptions& options,
                                int64_t alignment) {
  const bool same = mask_.defined() && mask_.size(0) == queries && mask_.size(1) == keys && band_.first == band.first &&
                    band_.last == band.last;
  if (same) return mask_;
  const at::TensorOptions integers = options.dtype(at::kLong);
  const at::Tensor ahead = at::arange(keys, integers) - at::arange(queries, integers).unsqueeze(1);
  const int64_t width = (keys + alignment - 1) / alignment * alignment;
  mask_ = at::zeros({queries, width}, options).narrow(1, 0, keys);
  mask_.masked_fill_(ahead.lt(band.first).bitwise_or_(ahead.gt(band.last)), -std::numeric_limits<double>::infinity());
  band_ = band;
  return mask_;
}

at::Tensor pad_heads(const at::Tensor& heads, int64_t size) {
  return heads.size(-1) == size ? heads : at::constant_pad_nd(heads, {0, size - heads.size(-1)});
}

at::Tensor trim_heads(const at::Tensor& heads, int64_t size) {
  if (heads.size(-1) == size) return heads;
  return heads.narrow(-1, 0, size).transpose(1, 2).contiguous().transpose(1, 2);
}

namespace {

// LibTorch's flash attention for CPUs accepts float, double, bfloat16 and half, and fewer key heads than query heads.
class CpuAttentionKernel final : public AttentionKernel {
 public:
  explicit CpuAttentionKernel(double scale) : scale_(scale) {}

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) override {
    const int64_t size = std::max(q.size(3), v.size(3));  // LibTorch requires heads of equal size.
    auto [out, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(pad_heads(q, size), pad_heads(k, size), pad_heads(v, size),
                                                        /*dropout_p=*/0, causal(q, k, band), mask(q, k, band), scale_);
    return {trim_heads(out, v.size(3)), lse};
  }

  AttentionBlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const BlockOutput& merged, const Band& band) override {
    const int64_t size = std::max(q.size(3), v.size(3));
    auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        pad_heads(grad_out, size), pad_heads(q, size), pad_heads(k, size), pad_heads(v, size),
        pad_heads(merged.out, size), merged.lse, /*dropout_p=*/0, causal(q, k, band), mask(q, k, band), scale_);
    return {grad_q.narrow(3, 0, q.size(3)), grad_k.narrow(3, 0, k.size(3)), grad_v.narrow(3, 0, v.size(3))};
  }

 private:
  // The kernel's causal mask starts at the first key, and the kernel skips hidden keys.
  static bool causal(const at::Tensor& q, const at::Tensor& k, const Band& band) {
    return band.last == 0 && band.cuts_after(k.size(2)) && !band.cuts_before(q.size(2));
  }
  std::optional<at::Tensor> mask(const at::Tensor& q, const at::Tensor& k, const Band& band) {
    const bool cut = band.cuts_before(q.size(2)) || band.cuts_after(k.size(2));
    if (!cut || causal(q, k, band)) return std::nullopt;
    return mask_.get(band, q.size(2), k.size(2), q.options());
  }

  const double scale_;
  BandMask mask_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_cpu_attention_kernel(double scale) {
  return std::make_unique<CpuAttentionKernel>(scale);
}

namespace {

template <typename Compute>
BlockOutput compute_or_keep(const at::Tensor& q, int64_t keys, bool causal, const Compute& compute) {
  if (SavedActivations::current() == nullptr) return compute();
  // Counts two products over the pairs of a query and a key that it sees, which are half of all under causality.
  const OpCall call{.kind = OpCall::Kind::kAttention,
                    .flops = (causal ? 2.0 : 4.0) * static_cast<double>(q.numel()) * static_cast<double>(keys)};
  std::vector<at::Tensor> results = saved_or_compute(call, {}, [&] {
    BlockOutput output = compute();
    return std::vector<at::Tensor>{std::move(output.out), std::move(output.lse)};
  });
  return {std::move(results[0]), std::move(results[1])};
}

class PlannedAttention : public torch::autograd::Function<PlannedAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& optional_sinks,
                            c10::intrusive_ptr<AttentionPlan> plan) {
    const at::Tensor sinks = optional_sinks.value_or(at::Tensor());
    const BlockOutput result =
        compute_or_keep(q, plan->keys(k), plan->causal, [&] { return plan->forward(q, k, v, sinks); });
    context->save_for_backward({q, k, v, sinks, result.out, result.lse});
    context->saved_data["plan"] = c10::IValue::make_capsule(std::move(plan));
    return result.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto plan = c10::static_intrusive_pointer_cast<AttentionPlan>(context->saved_data["plan"].toCapsule());
    AttentionGradients gradients =
        plan->backward(dense_heads(grads[0]), saved[0], saved[1], saved[2], saved[3], {saved[4], saved[5]});
    return {std::move(gradients.q), std::move(gradients.k), std::move(gradients.v), std::move(gradients.sinks),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor attend_by(c10::intrusive_ptr<AttentionPlan> plan, const AttentionInput& input) {
  // Arguments of autograd functions may not be undefined tensors.
  const auto sinks = input.sinks.defined() ? std::optional<at::Tensor>(input.sinks) : std::nullopt;
  return PlannedAttention::apply(dense_heads(input.q), dense_heads(input.k), dense_heads(input.v), sinks,
                                 std::move(plan));
}

}  // namespace titan::nn
