#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>

#include "worker/nn/layers.h"
#include "worker/nn/rope.h"

namespace titan::nn {

struct AttentionOptions {
  int64_t dim = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // Each serves heads / kv_heads query heads.
  int64_t head_dim = 0;
  Init in_init;   // wq, wk, wv
  Init out_init;  // wo
};

// Causal attention of q [B, H, T, D] over k, v [B, Hkv, T, D]; scale 1 / sqrt(D).
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// Grouped-query self-attention with rotary positions.
class Attention {
 public:
  using Core = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;

  Attention(const Declare& declare, const std::string& fqn, const AttentionOptions& options,
            std::shared_ptr<Rope> rope);
  at::Tensor forward(const at::Tensor& input) const;  // [B, T, dim] -> [B, T, dim]

  Linear wq, wk, wv, wo;
  Seams seams;                   // Around the whole sub-block.
  Core core = causal_attention;  // `parallel` replaces it for context parallelism.

 private:
  at::Tensor split_heads(const at::Tensor& x) const;

  int64_t head_dim_;
  std::shared_ptr<Rope> rope_;
};

}  // namespace titan::nn
