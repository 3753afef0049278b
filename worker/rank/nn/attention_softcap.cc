#include <utility>

#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/layers.h"

namespace titan::nn {
namespace {

// Query heads that share a key head are rows of one product, so keys and values are not repeated.
class SoftcapAttentionKernel final : public AttentionKernel {
 public:
  explicit SoftcapAttentionKernel(const ScoreForm& scores) : scores_(scores) {}

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) override {
    at::Tensor logits = bounded(q, k).mul_(scores_.softcap);
    hide(logits, q, k, band);
    const at::Tensor most = logits.amax(-1, /*keepdim=*/true);
    logits.sub_(most).exp_();
    const at::Tensor sum = logits.sum(-1, /*keepdim=*/true);
    const at::Tensor out = at::matmul(logits, wide(v)).div_(sum);  // [B, Hkv, H / Hkv * Tq, Dv]
    const at::Tensor by_head = out.view({q.size(0), q.size(1), q.size(2), v.size(3)}).to(q.scalar_type());
    // With tokens before heads in memory, as from other kernels, what reads the result needs no copy.
    return {by_head.transpose(1, 2).contiguous().transpose(1, 2),
            sum.log().add_(most).view({q.size(0), q.size(1), q.size(2)})};
  }

  AttentionBlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const BlockOutput& merged, const Band& band) override {
    const int64_t shared = k.size(1);
    at::Tensor slope = bounded(q, k);
    at::Tensor weights = slope * scores_.softcap;
    hide(weights, q, k, band);
    weights.sub_(grouped(merged.lse.unsqueeze(-1), shared)).exp_();
    slope.square_().neg_().add_(1).mul_(scores_.scale);  // The slope of tanh, times the scale.
    const at::Tensor grad = grouped(grad_out, shared);
    const at::Tensor grad_v = at::matmul(weights.transpose(2, 3), grad);
    const at::Tensor own = (grad * grouped(merged.out, shared)).sum(-1, /*keepdim=*/true);
    const at::Tensor grad_scores = at::matmul(grad, wide(v).transpose(2, 3)).sub_(own).mul_(weights).mul_(slope);
    return {at::matmul(grad_scores, wide(k)).view(q.sizes()).to(q.scalar_type()),
            at::matmul(grad_scores.transpose(2, 3), grouped(q, shared)).to(k.scalar_type()),
            grad_v.to(v.scalar_type())};
  }

 private:
  static at::Tensor wide(const at::Tensor& heads) { return heads.to(accumulate_type(heads.scalar_type())); }
  // [B, H, T, D] -> [B, Hkv, H / Hkv * T, D], in at least fp32.
  static at::Tensor grouped(const at::Tensor& heads, int64_t shared) {
    return wide(heads).reshape({heads.size(0), shared, heads.size(1) / shared * heads.size(2), heads.size(3)});
  }
  // Returns the scores divided by the cap, after tanh: [B, Hkv, H / Hkv * Tq, Tk].
  at::Tensor bounded(const at::Tensor& q, const at::Tensor& k) const {
    return at::matmul(grouped(q, k.size(1)), wide(k).transpose(2, 3)).mul_(scores_.scale / scores_.softcap).tanh_();
  }
  void hide(at::Tensor& logits, const at::Tensor& q, const at::Tensor& k, const Band& band) {
    const int64_t queries = q.size(2), keys = k.size(2);
    if (!band.cuts_before(queries) && !band.cuts_after(keys)) return;
    logits.view({q.size(0), q.size(1), queries, keys}).add_(mask_.get(band, queries, keys, logits.options()));
  }

  const ScoreForm scores_;
  BandMask mask_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_softcap_attention_kernel(const ScoreForm& scores) {
  return std::make_unique<SoftcapAttentionKernel>(scores);
}

}  // namespace titan::nn
