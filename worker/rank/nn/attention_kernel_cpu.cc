#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <algorithm>

#include "worker/rank/nn/attention_kernel.h"

namespace titan::nn {
namespace {

// LibTorch's flash attention for CPUs: float, double, bfloat16 and half; key heads may be fewer than query heads.
class CpuAttentionKernel final : public AttentionKernel {
 public:
  explicit CpuAttentionKernel(double scale) : scale_(scale) {}

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) override {
    const int64_t size = std::max(q.size(3), v.size(3));  // It wants heads of equal size.
    auto [out, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(pad_heads(q, size), pad_heads(k, size), pad_heads(v, size),
                                                        /*dropout_p=*/0, causal(q, k, band), mask(q, k, band), scale_);
    return {trim_heads(out, v.size(3)), lse};
  }

  BlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const BlockOutput& merged, const Band& band) override {
    const int64_t size = std::max(q.size(3), v.size(3));
    auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        pad_heads(grad_out, size), pad_heads(q, size), pad_heads(k, size), pad_heads(v, size),
        pad_heads(merged.out, size), merged.lse, /*dropout_p=*/0, causal(q, k, band), mask(q, k, band), scale_);
    return {grad_q.narrow(3, 0, q.size(3)), grad_k.narrow(3, 0, k.size(3)), grad_v.narrow(3, 0, v.size(3))};
  }

 private:
  // The kernel's own causal mask starts at the first key and skips what is hidden.
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

}  // namespace titan::nn
