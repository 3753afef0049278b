#pragma once

// Rows that are being generated keep their keys and values in a ring of slots a layer, and each new token attends over
// them: the token at position p is in slot p modulo the ring's size.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/block.h"

namespace titan::generate {

// How many slots a row needs, when it grows to `tokens`: a window or a chunk never looks further back than its size.
int64_t ring_size(const nn::AttentionMask& mask, int64_t tokens);

// Which of the first `slots` slots of a ring of `ring` a row's newest token sees, its own included: bool [B, slots].
// `positions`: int64 [B], of the newest tokens. The mask's `documents` is not looked at: what is generated is one.
at::Tensor visible_slots(const at::Tensor& positions, int64_t ring, int64_t slots, const nn::AttentionMask& mask);

// Attention of one new token a row. q [B, H, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv], visible bool [B, S]; sinks as in
// nn::AttentionInput: [B, H, Dv].
at::Tensor attend_slots(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible,
                        double scale, const at::Tensor& sinks);

// The same over latents, without growing keys and values out of them (arXiv 2405.04434, 2.1.2): the projection's rows
// of keys go into the queries, its rows of values into the result. q [B, H, nope + rope], latents [B, S, R], keys [B,
// S, rope], projection [H * (nope + Dv), R]: [B, H, Dv].
at::Tensor attend_latents(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& keys,
                          const at::Tensor& projection, const at::Tensor& visible, double scale);

// What a pass brings to the caches.
struct CachePass {
  std::vector<int64_t> lengths;  // Whole prompts, [B, T] tokens, of which row r has the first lengths[r]; empty:
  at::Tensor positions;          // a step, [1, S] tokens: the newest of each row (S >= B) at these, int64 [B].
};

// One layer's cache.
class LayerCache {
 public:
  virtual ~LayerCache() = default;
  virtual int64_t bytes() const = 0;
};

// Keys and values (of latent attention: latents) of the rows that are being generated, for every layer of a model:
// takes the place of each attention's core while it lives. Layers with a window or chunks keep no more than that.
class KvCache {
 public:
  // Rows grow to `max_tokens`. Throws c10::Error for a model of one's own whose attention is none of Titan's.
  KvCache(const std::vector<nn::Block*>& blocks, int64_t rows, int64_t max_tokens);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // What the next pass through the blocks is.
  void expect(CachePass pass) { *pass_ = std::move(pass); }
  int64_t bytes() const;

 private:
  std::shared_ptr<CachePass> pass_ = std::make_shared<CachePass>();
  std::vector<std::shared_ptr<LayerCache>> layers_;
  std::vector<std::function<void()>> give_back_;  // The cores that were there before.
};

}  // namespace titan::generate
