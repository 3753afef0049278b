#include "worker/rank/nn/attention_kernel.h"

#include <c10/util/Exception.h>

#include <limits>

#include "worker/rank/nn/attention_ranges.h"
#include "worker/rank/nn/layers.h"

namespace titan::nn {
namespace {

// Shapes without values, for dry runs.
class MetaAttentionKernel final : public AttentionKernel {
 public:
  BlockOutput forward(const at::Tensor& q, const at::Tensor&, const at::Tensor& v, const Band&) override {
    return {at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2),
            at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(accumulate_type(q.scalar_type())))};
  }
  BlockGradients backward(const at::Tensor&, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const BlockOutput&, const Band&) override {
    return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
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

  BlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const BlockOutput& merged, const Band& band) override {
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
  // Each query head's own key or value head, at full precision.
  static at::Tensor wide(const at::Tensor& heads, int64_t query_heads) {
    const at::Tensor exact = heads.to(accumulate_type(heads.scalar_type()));
    return heads.size(1) == query_heads ? exact : exact.repeat_interleave(query_heads / heads.size(1), 1);
  }
  // The sum over the query heads that share a head.
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

std::unique_ptr<AttentionKernel> make_attention_kernel(const at::Tensor& q, int64_t v_size, double scale) {
  if (q.is_meta()) return std::make_unique<MetaAttentionKernel>();
  if (ranges_take(q, v_size)) return make_ranges_attention_kernel(scale);
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
  mask_.masked_fill_(ahead.lt(band.first).logical_or_(ahead.gt(band.last)), -std::numeric_limits<double>::infinity());
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

}  // namespace titan::nn
