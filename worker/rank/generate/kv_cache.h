#pragma once

// The cache of keys and values for generation: each layer has a ring of slots per row, and each new token attends to
// them. The token at position p is in slot p modulo the ring's size.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/block.h"

namespace titan::generate {

// Returns the number of slots that a row of `tokens` tokens needs. A window or chunk never looks further back than its
// size.
int64_t ring_size(const nn::AttentionMask& mask, int64_t tokens);

// Returns which of the first `slots` slots of a ring of size `ring` are visible to a row's newest token, including its
// own: bool [B, slots]. `positions`: int64 [B], of the newest tokens. Ignores the mask's `documents`, because generated
// text is one document.
at::Tensor visible_slots(const at::Tensor& positions, int64_t ring, int64_t slots, const nn::AttentionMask& mask);

// Computes the attention of one new token per row. q [B, H, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv], visible bool [B,
// S], sinks [H] or undefined and softcap (nn::AttentionInput). Returns [B, H, Dv].
at::Tensor attend_slots(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible,
                        double scale, const at::Tensor& sinks, double softcap = 0);

// Same for latents, without expanding them to keys and values (arXiv 2405.04434, 2.1.2): the projection's rows for keys
// are applied to the queries, its rows for values to the result. q [B, H, nope + rope], latents [B, S, R], keys [B, S,
// rope], projection [H * (nope + Dv), R], visible bool [B, S]. Returns [B, H, Dv].
at::Tensor attend_latents(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& keys,
                          const at::Tensor& projection, const at::Tensor& visible, double scale);

// Describes a pass for the caches.
struct CachePass {
  std::vector<int64_t> lengths;  // A pass over whole prompts [B, T]: row r has lengths[r] tokens. Empty: a step.
  at::Tensor positions;          // A step [1, S], S >= B: positions of the rows' newest tokens, int64 [B].
};

// The cache of one layer.
class LayerCache {
 public:
  virtual ~LayerCache() = default;
  virtual int64_t bytes() const = 0;
};

// Keys and values (for latent attention: latents) of the generated rows, for every layer of a model. Replaces each
// attention's core while it lives. Layers with a window or chunks keep no more than that.
class KvCache {
 public:
  // Rows may grow to `max_tokens`. Throws c10::Error for a custom model whose attention is not one of Titan's.
  KvCache(const std::vector<nn::Block*>& blocks, int64_t rows, int64_t max_tokens);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // Describes the next pass through the blocks.
  void expect(CachePass pass) { *pass_ = std::move(pass); }
  int64_t bytes() const;

 private:
  std::shared_ptr<CachePass> pass_ = std::make_shared<CachePass>();
  std::vector<std::shared_ptr<LayerCache>> layers_;
  std::vector<std::function<void()>> restore_cores_;  // They restore the previous cores.
};

}  // namespace titan::generate
