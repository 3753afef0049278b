#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/rank/nn/block.h"

namespace titan::generate {

// What a pass brings to the caches.
struct CachePass {
  std::vector<int64_t> lengths;  // Whole prompts, [B, T] tokens, of which row r has the first lengths[r]; empty:
  at::Tensor positions;          // a step, [1, S] tokens: the newest of each row (S >= B) at these, int64 [B].
};

// One layer's.
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
