#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>

#include <algorithm>
#include <limits>

#include "worker/rank/nn/attention_kernel.h"

// LibTorch's CUDA kernels are reached through the dispatcher, so this file needs no CUDA to compile.
namespace titan::nn {
namespace {

constexpr int64_t kHeadMultiple = 8;  // Both kernels require heads in steps of about 16 bytes.
constexpr int64_t kMaxFlashHead = 256;
constexpr int64_t kLseMultiple = 32;   // The efficient kernel reads lse in pieces of this size.
constexpr int64_t kBiasMultiple = 16;  // Elements between rows of its bias: a multiple of this.

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

class CudaAttentionKernel final : public AttentionKernel {
 public:
  explicit CudaAttentionKernel(double scale) : scale_(scale) {}

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) override {
    if (!flash_fits(q, v)) return efficient_forward(q, k, v, band);
    const int64_t first = apart(q, k, band);
    if (first == 0) return flash_forward(q, k, v, band);
    const BlockOutput early = flash_forward(q.narrow(2, 0, first), k, v, band);
    const BlockOutput late = flash_forward(q.narrow(2, first, q.size(2) - first), k, v, shifted(band, first));
    return {joined(early.out, late.out), at::cat({early.lse, late.lse}, 2)};
  }
  AttentionBlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const BlockOutput& merged, const Band& band) override {
    if (!flash_fits(q, v)) return efficient_backward(grad_out, q, k, v, merged, band);
    const int64_t first = apart(q, k, band);
    if (first == 0) return flash_backward(grad_out, q, k, v, merged, band);
    const auto part = [&](int64_t begin, int64_t length) {
      const auto of = [&](const at::Tensor& tensor) { return tensor.narrow(2, begin, length); };
      return flash_backward(of(grad_out), of(q), k, v, {of(merged.out), of(merged.lse)}, shifted(band, begin));
    };
    const AttentionBlockGradients early = part(0, first), late = part(first, q.size(2) - first);
    return {joined(early.q, late.q), early.k.to(at::kFloat).add_(late.k), early.v.to(at::kFloat).add_(late.v)};
  }

 private:
  static bool flash_fits(const at::Tensor& q, const at::Tensor& v) {
    return (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) &&
           std::max(q.size(3), v.size(3)) <= kMaxFlashHead;
  }
  static int64_t head_size(const at::Tensor& q, const at::Tensor& v) {
    return round_up(std::max(q.size(3), v.size(3)), kHeadMultiple);
  }
  // Flash attention requires tokens before heads.
  static at::Tensor tokens_first(const at::Tensor& heads, int64_t size) {
    return pad_heads(heads, size).transpose(1, 2);
  }

  // Flash attention's windows count from the diagonal that ends in the last query and the last key. -1: no limit.
  struct Windows {
    std::optional<int64_t> left, right;
  };
  static Windows windows(const at::Tensor& q, const at::Tensor& k, const Band& band) {
    const int64_t diagonal = k.size(2) - q.size(2);
    return {band.cuts_before(q.size(2)) ? diagonal - band.first : -1,
            band.cuts_after(k.size(2)) ? band.last - diagonal : -1};
  }

  // If there are more queries than keys, flash attention treats a right window that is not smaller than the number of
  // keys as no window, although it hides keys from the first queries. Returns how many queries need a separate call to
  // avoid this. 0: one call suffices.
  static int64_t apart(const at::Tensor& q, const at::Tensor& k, const Band& band) {
    const int64_t keys = k.size(2);
    const bool taken_for_none = band.cuts_after(keys) && band.last + q.size(2) - keys >= keys;
    return taken_for_none ? keys - band.last : 0;
  }
  static Band shifted(const Band& band, int64_t queries) { return {band.first + queries, band.last + queries}; }
  static at::Tensor joined(const at::Tensor& early, const at::Tensor& late) {  // Tokens stay before heads in memory.
    return at::cat({early.transpose(1, 2), late.transpose(1, 2)}, 1).transpose(1, 2);
  }

  BlockOutput flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) {
    const int64_t size = head_size(q, v);
    const auto [left, right] = windows(q, k, band);
    auto result = at::_flash_attention_forward(tokens_first(q, size), tokens_first(k, size), tokens_first(v, size), {},
                                               {}, q.size(2), k.size(2), /*dropout_p=*/0, /*is_causal=*/false,
                                               /*return_debug_mask=*/false, scale_, left, right);
    return {trim_heads(std::get<0>(result).transpose(1, 2), v.size(3)), std::get<1>(result)};
  }

  AttentionBlockGradients flash_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const BlockOutput& merged, const Band& band) {
    const int64_t size = head_size(q, v);
    const auto [left, right] = windows(q, k, band);
    const at::Tensor no_dropout = at::empty({2}, q.options().dtype(at::kUInt64));
    auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
        tokens_first(grad_out, size), tokens_first(q, size), tokens_first(k, size), tokens_first(v, size),
        tokens_first(merged.out, size), merged.lse.contiguous(), {}, {}, q.size(2), k.size(2), /*dropout_p=*/0,
        /*is_causal=*/false, no_dropout, no_dropout, scale_, left, right);
    return {grad_q.transpose(1, 2).narrow(3, 0, q.size(3)), grad_k.transpose(1, 2).narrow(3, 0, k.size(3)),
            grad_v.transpose(1, 2).narrow(3, 0, v.size(3))};
  }

  // The efficient kernel accepts float, but requires as many key heads as query heads, and bands as an added mask.
  static at::Tensor every_head(const at::Tensor& heads, int64_t query_heads, int64_t size) {
    const at::Tensor padded = pad_heads(heads, size);
    return heads.size(1) == query_heads ? padded : padded.repeat_interleave(query_heads / heads.size(1), 1);
  }
  static at::Tensor shared_heads(const at::Tensor& grad, const at::Tensor& heads) {
    const at::Tensor own = grad.narrow(3, 0, heads.size(3));
    return grad.size(1) == heads.size(1) ? own : own.unflatten(1, {heads.size(1), -1}).sum(2);
  }
  static bool causal(const at::Tensor& q, const at::Tensor& k, const Band& band) {
    return band.last == 0 && band.cuts_after(k.size(2)) && !band.cuts_before(q.size(2));
  }
  at::Tensor bias(const at::Tensor& q, const at::Tensor& k, const Band& band) {
    const bool cut = band.cuts_before(q.size(2)) || band.cuts_after(k.size(2));
    if (!cut || causal(q, k, band)) return {};
    return mask_.get(band, q.size(2), k.size(2), q.options(), kBiasMultiple)
        .expand({q.size(0), q.size(1), q.size(2), k.size(2)});
  }

  BlockOutput efficient_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) {
    const int64_t size = round_up(q.size(3), kHeadMultiple), v_size = round_up(v.size(3), kHeadMultiple);
    const at::Tensor added = bias(q, k, band);
    auto result = at::_scaled_dot_product_efficient_attention(
        pad_heads(q, size), every_head(k, q.size(1), size), every_head(v, q.size(1), v_size),
        added.defined() ? std::optional<at::Tensor>(added) : std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0,
        causal(q, k, band), scale_);
    return {trim_heads(std::get<0>(result), v.size(3)), std::get<1>(result).narrow(2, 0, q.size(2))};
  }

  AttentionBlockGradients efficient_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const BlockOutput& merged, const Band& band) {
    const int64_t size = round_up(q.size(3), kHeadMultiple), v_size = round_up(v.size(3), kHeadMultiple);
    const int64_t rest = round_up(q.size(2), kLseMultiple) - q.size(2);
    const at::Tensor lse =
        at::constant_pad_nd(merged.lse, {0, rest}, std::numeric_limits<double>::infinity()).contiguous();
    const at::Tensor no_dropout = at::empty({}, q.options().dtype(at::kLong));
    auto result = at::_scaled_dot_product_efficient_attention_backward(
        pad_heads(grad_out, v_size), pad_heads(q, size), every_head(k, q.size(1), size),
        every_head(v, q.size(1), v_size), bias(q, k, band), pad_heads(merged.out, v_size), lse, no_dropout, no_dropout,
        /*dropout_p=*/0, {true, true, true, false}, causal(q, k, band), scale_);
    return {std::get<0>(result).narrow(3, 0, q.size(3)), shared_heads(std::get<1>(result), k),
            shared_heads(std::get<2>(result), v)};
  }

  const double scale_;
  BandMask mask_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_cuda_attention_kernel(double scale) {
  return std::make_unique<CudaAttentionKernel>(scale);
}

}  // namespace titan::nn
