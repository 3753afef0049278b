#include "worker/rank/generate/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "worker/rank/nn/attention.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/matmul_recipe.h"

namespace titan::generate {
namespace {

// Returns the softmax of scores [B, ..., S] in the type of `scores`. A sink receives probability but has no value.
at::Tensor softmax_of(const at::Tensor& scores, double scale, const at::Tensor& visible, const at::Tensor& sinks,
                      double softcap = 0) {
  at::Tensor seen = scores.to(nn::accumulate_type(scores.scalar_type())) * scale;
  if (softcap > 0) seen = (seen / softcap).tanh_() * softcap;
  seen = seen.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  if (!sinks.defined()) return at::softmax(seen, -1).to(scores.scalar_type());
  const at::Tensor sink = sinks.to(seen.scalar_type()).expand({seen.size(0), seen.size(1), seen.size(2), 1});
  const at::Tensor all = at::softmax(at::cat({seen, sink}, -1), -1);
  return all.narrow(-1, 0, seen.size(-1)).to(scores.scalar_type());
}

}  // namespace

int64_t ring_size(const nn::AttentionMask& mask, int64_t tokens) {
  if (mask.window > 0) tokens = std::min(tokens, mask.window);
  if (mask.chunk > 0) tokens = std::min(tokens, mask.chunk);
  return tokens;
}

at::Tensor visible_slots(const at::Tensor& positions, int64_t ring, int64_t slots, const nn::AttentionMask& mask) {
  const at::Tensor newest = positions.unsqueeze(1);                             // [B, 1]
  const at::Tensor slot = at::arange(slots, positions.options()).unsqueeze(0);  // [1, S]
  const at::Tensor held = newest - at::remainder(newest - slot, ring);          // The newest position of each slot.
  at::Tensor first = at::zeros_like(newest);
  if (mask.window > 0) first = at::maximum(first, newest - (mask.window - 1));
  if (mask.chunk > 0) first = at::maximum(first, newest - at::remainder(newest, mask.chunk));
  return held >= first;
}

at::Tensor attend_slots(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible,
                        double scale, const at::Tensor& sinks, double softcap) {
  const int64_t rows = q.size(0), heads = q.size(1), shared = k.size(1);
  TORCH_CHECK(heads % shared == 0, heads, " query heads cannot share ", shared, " key heads");
  const at::Tensor grouped = q.reshape({rows, shared, heads / shared, q.size(2)});
  const at::Tensor scores = at::matmul(grouped, k.transpose(2, 3));  // [B, Hkv, H / Hkv, S]
  const at::Tensor sink = sinks.defined() ? sinks.view({1, shared, heads / shared, 1}) : sinks;
  const at::Tensor weights = softmax_of(scores, scale, visible.view({rows, 1, 1, -1}), sink, softcap);
  return at::matmul(weights, v).reshape({rows, heads, v.size(3)});
}

at::Tensor attend_latents(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& keys,
                          const at::Tensor& projection, const at::Tensor& visible, double scale) {
  const int64_t heads = q.size(1), turned = keys.size(2), plain = q.size(2) - turned;
  const at::Tensor rows = projection.view({heads, -1, projection.size(1)});  // [H, nope + Dv, R]
  const at::Tensor into_keys = rows.narrow(1, 0, plain), into_values = rows.narrow(1, plain, rows.size(1) - plain);
  const at::Tensor plain_q = at::bmm(q.narrow(2, 0, plain).transpose(0, 1), into_keys).transpose(0, 1);  // [B, H, R]
  const at::Tensor scores = at::matmul(plain_q, latents.transpose(1, 2)) +
                            at::matmul(q.narrow(2, plain, turned), keys.transpose(1, 2));             // [B, H, S]
  const at::Tensor mixed = at::matmul(softmax_of(scores, scale, visible.unsqueeze(1), {}), latents);  // [B, H, R]
  return at::bmm(mixed.transpose(0, 1), into_values.transpose(1, 2)).transpose(0, 1);                 // [B, H, Dv]
}

namespace {

// A ring of slots per row, for tensors [B, ..., slots, ...].
struct Ring {
  int64_t rows = 0, slots = 0;

  // Positions [first, length) of a prompt with `length` tokens are the newest that fit.
  int64_t first(int64_t length) const { return std::max<int64_t>(0, length - slots); }
  at::Tensor places(int64_t length, at::Device device) const {
    return at::remainder(at::arange(first(length), length, at::TensorOptions(at::kLong).device(device)), slots);
  }
  // Returns the number of slots in use when the newest tokens are at `positions`.
  int64_t used(const at::Tensor& positions) const { return std::min(slots, positions.max().item<int64_t>() + 1); }
};

// A step passes the rows' tokens as one row [1, ..., S, ...], S along `dim`. Returns the rows' tokens [B, ...], without
// the padding that a mesh adds at the end.
at::Tensor newest(const at::Tensor& x, int64_t dim, int64_t rows) {
  return x.squeeze(0).transpose(0, dim - 1).narrow(0, 0, rows);
}

// The inverse of newest(), with zeros as padding.
at::Tensor as_one_row(const at::Tensor& mixed, int64_t tokens) {
  const int64_t added = tokens - mixed.size(0);
  return added == 0 ? mixed : at::constant_pad_nd(mixed, {0, 0, 0, 0, 0, added});
}

at::Tensor row_numbers(int64_t rows, at::Device device) {
  return at::arange(rows, at::TensorOptions(at::kLong).device(device));
}

class GroupedCache : public LayerCache {
 public:
  GroupedCache(std::shared_ptr<const CachePass> pass, nn::AttentionCore whole, Ring ring)
      : pass_(std::move(pass)), whole_(std::move(whole)), ring_(ring) {}

  at::Tensor attend(const nn::AttentionInput& input, const nn::MicrobatchContext& context) {
    if (!pass_->lengths.empty()) {
      keep_prompts(input.k, input.v);
      return whole_(input, context);
    }
    const at::Tensor& positions = pass_->positions;
    const at::Tensor q = newest(input.q, 2, ring_.rows);  // [B, H, D]
    const at::Tensor row = row_numbers(ring_.rows, q.device()), slot = at::remainder(positions, ring_.slots);
    at::index_put_(keys_, {row, std::nullopt, slot}, newest(input.k, 2, ring_.rows));
    at::index_put_(values_, {row, std::nullopt, slot}, newest(input.v, 2, ring_.rows));
    const int64_t used = ring_.used(positions);
    const at::Tensor mixed = attend_slots(q, keys_.narrow(2, 0, used), values_.narrow(2, 0, used),
                                          visible_slots(positions, ring_.slots, used, input.mask), input.scale,
                                          input.sinks, input.softcap);       // [B, H, Dv]
    return as_one_row(mixed, input.q.size(2)).transpose(0, 1).unsqueeze(0);  // [1, H, S, Dv]
  }

  int64_t bytes() const override { return keys_.defined() ? keys_.nbytes() + values_.nbytes() : 0; }

 private:
  void keep_prompts(const at::Tensor& k, const at::Tensor& v) {
    keys_ = at::zeros({ring_.rows, k.size(1), ring_.slots, k.size(3)}, k.options());
    values_ = at::zeros({ring_.rows, v.size(1), ring_.slots, v.size(3)}, v.options());
    for (int64_t row = 0; row < ring_.rows; ++row) {
      const int64_t length = pass_->lengths[static_cast<size_t>(row)], first = ring_.first(length);
      const at::Tensor places = ring_.places(length, k.device());
      keys_.select(0, row).index_copy_(1, places, k.select(0, row).narrow(1, first, length - first));
      values_.select(0, row).index_copy_(1, places, v.select(0, row).narrow(1, first, length - first));
    }
  }

  const std::shared_ptr<const CachePass> pass_;
  const nn::AttentionCore whole_;  // For prompts.
  const Ring ring_;
  at::Tensor keys_, values_;  // [B, Hkv, slots, D]
};

class LatentCache : public LayerCache {
 public:
  LatentCache(std::shared_ptr<const CachePass> pass, const nn::LatentAttention& layer, Ring ring)
      : pass_(std::move(pass)), layer_(layer), ring_(ring) {}

  at::Tensor attend(const nn::LatentInput& input, const nn::MicrobatchContext&) {
    if (!pass_->lengths.empty()) {
      keep_prompts(input);
      return {};
    }
    const at::Tensor& positions = pass_->positions;
    const at::Tensor q = newest(input.q, 1, ring_.rows);  // [B, H, nope + rope]
    const at::Tensor row = row_numbers(ring_.rows, q.device()), slot = at::remainder(positions, ring_.slots);
    at::index_put_(latents_, {row, slot}, newest(input.latent, 1, ring_.rows));
    at::index_put_(keys_, {row, slot}, newest(input.shared_key.squeeze(2), 1, ring_.rows));
    const int64_t used = ring_.used(positions);
    const at::Tensor visible = visible_slots(positions, ring_.slots, used, layer_.options().mask);
    const at::Tensor mixed = mix(q, latents_.narrow(1, 0, used), keys_.narrow(1, 0, used), visible);  // [B, H, v]
    return as_one_row(mixed, input.q.size(1)).unsqueeze(0);                                           // [1, S, H, v]
  }

  int64_t bytes() const override { return latents_.defined() ? latents_.nbytes() + keys_.nbytes() : 0; }

 private:
  void keep_prompts(const nn::LatentInput& input) {
    latents_ = at::zeros({ring_.rows, ring_.slots, input.latent.size(2)}, input.latent.options());
    keys_ = at::zeros({ring_.rows, ring_.slots, input.shared_key.size(3)}, input.shared_key.options());
    for (int64_t row = 0; row < ring_.rows; ++row) {
      const int64_t length = pass_->lengths[static_cast<size_t>(row)], first = ring_.first(length);
      const at::Tensor places = ring_.places(length, latents_.device());
      latents_.select(0, row).index_copy_(0, places, input.latent.select(0, row).narrow(0, first, length - first));
      keys_.select(0, row).index_copy_(0, places,
                                       input.shared_key.select(0, row).squeeze(1).narrow(0, first, length - first));
    }
  }

  // A weight that is not plain numbers (quantized or with an adapter) is applied by its layer.
  at::Tensor mix(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& keys, const at::Tensor& visible) {
    const nn::LatentAttentionOptions& o = layer_.options();
    const nn::Parameter& projection = layer_.wkv_b->weight();
    if (projection.products == nullptr && !projection.adapter && projection.packed_row == 0)
      return attend_latents(q, latents, keys, projection.weight, visible, o.softmax_scale);
    const at::Tensor grown = layer_.wkv_b->forward(latents)
                                 .view({latents.size(0), latents.size(1), -1, o.nope_dim + o.v_dim})
                                 .transpose(1, 2);
    const at::Tensor shared = keys.unsqueeze(1).expand({-1, grown.size(1), -1, -1});
    return attend_slots(q, at::cat({grown.narrow(3, 0, o.nope_dim), shared}, 3), grown.narrow(3, o.nope_dim, o.v_dim),
                        visible, o.softmax_scale, {});
  }

  const std::shared_ptr<const CachePass> pass_;
  const nn::LatentAttention& layer_;
  const Ring ring_;
  at::Tensor latents_, keys_;  // [B, slots, kv_lora], [B, slots, rope]
};

}  // namespace

KvCache::KvCache(const std::vector<nn::Block*>& blocks, int64_t rows, int64_t max_tokens) {
  for (nn::Block* block : blocks) {
    auto* const has = dynamic_cast<nn::HasAttention*>(block);
    if (has == nullptr) continue;
    nn::SelfAttention& attention = has->self_attention();
    if (auto* const latent = dynamic_cast<nn::LatentAttention*>(&attention)) {
      const Ring ring{rows, ring_size(latent->options().mask, max_tokens)};
      const auto cache = std::make_shared<LatentCache>(pass_, *latent, ring);
      layers_.push_back(cache);
      latent->latent_core = [cache](const auto& input, const auto& context) { return cache->attend(input, context); };
      restore_cores_.push_back([latent] { latent->latent_core = nullptr; });
    } else {
      auto* const grouped = dynamic_cast<nn::GroupedAttention*>(&attention);
      TORCH_CHECK(grouped != nullptr, "block ", block->name(), " has an attention that the KV cache does not support");
      const Ring ring{rows, ring_size(grouped->mask, max_tokens)};
      const nn::AttentionCore before = grouped->core;
      const auto cache = std::make_shared<GroupedCache>(pass_, before, ring);
      layers_.push_back(cache);
      grouped->core = [cache](const auto& input, const auto& context) { return cache->attend(input, context); };
      restore_cores_.push_back([grouped, before] { grouped->core = before; });
    }
  }
}

KvCache::~KvCache() {
  for (const auto& give_back : restore_cores_) give_back();
}

int64_t KvCache::bytes() const {
  int64_t all = 0;
  for (const auto& layer : layers_) all += layer->bytes();
  return all;
}

}  // namespace titan::generate
