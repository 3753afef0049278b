#include "worker/rank/nn/attention_ranges.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

constexpr int64_t kMaxHead = 256;

kernels::Heads heads_of(const at::Tensor& t) {
  return {reinterpret_cast<const uint16_t*>(t.const_data_ptr()), t.stride(0), t.stride(2), t.stride(1)};
}

kernels::HeadsOut out_heads_of(const at::Tensor& t) {
  return {reinterpret_cast<uint16_t*>(t.mutable_data_ptr()), t.stride(0), t.stride(2), t.stride(1)};
}

// Allocates [B, H, T, size] for `like` [B, H, T, D], with tokens before heads in memory.
at::Tensor tokens_first(const at::Tensor& like, int64_t size) {
  return uninitialized({like.size(0), like.size(2), like.size(1), size}, like.options()).transpose(1, 2);
}

at::Tensor plain_floats(const at::Tensor& t) { return t.defined() ? t.to(at::kFloat).contiguous() : t; }

kernels::AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                                 const VisibleKeys& visible, double scale) {
  return {.batch = q.size(0),
          .heads = q.size(1),
          .kv_heads = k.size(1),
          .queries = q.size(2),
          .keys = k.size(2),
          .size = q.size(3),
          .v_size = v.size(3),
          .scale = static_cast<float>(scale),
          .visible = visible.ranges.data(),
          .visible_stride = visible.stride,
          .sinks = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr,
          .threads = at::get_num_threads()};
}

// Query i sees keys i + first to i + last, as far as they exist.
void add_band(const Band& band, int64_t queries, int64_t first_key, int64_t keys, kernels::KeyRange* ranges) {
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t begin = std::clamp<int64_t>(i + band.first, 0, keys);
    const int64_t end = std::clamp<int64_t>(i + band.last + 1, begin, keys);
    ranges[i] = {static_cast<int32_t>(first_key + begin), static_cast<int32_t>(first_key + end)};
  }
}

VisibleKeys visible_in(const Band& band, int64_t queries, int64_t keys) {
  VisibleKeys visible;
  visible.ranges.resize(queries);
  add_band(band, queries, 0, keys, visible.ranges.data());
  return visible;
}

class RangesAttentionKernel final : public AttentionKernel {
 public:
  explicit RangesAttentionKernel(double scale) : scale_(scale) {}

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) override {
    return ranges_forward(q, k, v, {}, visible_in(band, q.size(2), k.size(2)), scale_);
  }

  AttentionBlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const BlockOutput& merged, const Band& band) override {
    AttentionGradients gradients =
        ranges_backward(grad_out, q, k, v, {}, merged, visible_in(band, q.size(2), k.size(2)), scale_);
    return {std::move(gradients.q), std::move(gradients.k), std::move(gradients.v)};
  }

 private:
  const double scale_;
};

}  // namespace

bool can_use_range_attention(const at::Tensor& q, int64_t v_size) {
  return can_use_cpu_kernels(q) && std::max(q.size(3), v_size) <= kMaxHead;
}

VisibleKeys visible_keys(const std::vector<BlockPair>& pairs, int64_t batch, int64_t queries) {
  const bool alike = std::all_of(pairs.begin(), pairs.end(), [](const BlockPair& p) { return p.row == kAllRows; });
  VisibleKeys visible;
  visible.stride = alike ? 0 : queries;
  visible.ranges.resize(alike ? queries : batch * queries);
  for (const BlockPair& pair : pairs) {
    const int64_t first = pair.row == kAllRows ? 0 : pair.row,
                  last = pair.row == kAllRows && !alike ? batch : first + 1;
    for (int64_t row = first; row < last; ++row) {
      add_band(pair.band, pair.queries, pair.key, pair.keys, &visible.ranges[row * visible.stride + pair.query]);
    }
  }
  return visible;
}

BlockOutput ranges_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                           const VisibleKeys& visible, double scale) {
  const at::Tensor wide_sinks = plain_floats(sinks);
  BlockOutput result{tokens_first(q, v.size(3)),
                     uninitialized({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat))};
  const bool done =
      kernels::attention_forward(*kernels::chosen_level(), {.shape = shape_of(q, k, v, wide_sinks, visible, scale),
                                                            .q = heads_of(q),
                                                            .k = heads_of(k),
                                                            .v = heads_of(v),
                                                            .o = out_heads_of(result.out),
                                                            .lse = result.lse.mutable_data_ptr<float>()});
  TORCH_CHECK(done, "attention: cannot allocate scratch memory for queries of ", q.sizes(), " and keys of ", k.sizes());
  return result;
}

AttentionGradients ranges_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const at::Tensor& sinks, const BlockOutput& result,
                                   const VisibleKeys& visible, double scale) {
  const at::Tensor wide_sinks = plain_floats(sinks), lse = result.lse.contiguous();
  AttentionGradients gradients{tokens_first(q, q.size(3)), tokens_first(k, k.size(3)), tokens_first(v, v.size(3)),
                               sinks.defined() ? uninitialized({q.size(1)}, lse.options()) : at::Tensor()};
  const bool done = kernels::attention_backward(
      *kernels::chosen_level(), {.shape = shape_of(q, k, v, wide_sinks, visible, scale),
                                 .q = heads_of(q),
                                 .k = heads_of(k),
                                 .v = heads_of(v),
                                 .o = heads_of(result.out),
                                 .grad_o = heads_of(grad_out),
                                 .lse = lse.const_data_ptr<float>(),
                                 .grad_q = out_heads_of(gradients.q),
                                 .grad_k = out_heads_of(gradients.k),
                                 .grad_v = out_heads_of(gradients.v),
                                 .grad_sinks = sinks.defined() ? gradients.sinks.mutable_data_ptr<float>() : nullptr});
  TORCH_CHECK(done, "attention: cannot allocate scratch memory for the gradients of queries of ", q.sizes(),
              " and keys of ", k.sizes());
  if (sinks.defined()) gradients.sinks = gradients.sinks.to(sinks.scalar_type());
  return gradients;
}

std::unique_ptr<AttentionKernel> make_ranges_attention_kernel(double scale) {
  return std::make_unique<RangesAttentionKernel>(scale);
}

}  // namespace titan::nn
