#pragma once

#include "common/plan/models/registry.h"

namespace titan::testing {

// Returns a small DeepSeek V3 of two layers: latent heads, a dense layer and four experts.
inline models::ModelSpec small_latent_experts() {
  models::ModelSpec spec = models::find("deepseek_v3", "debugmodel").value();
  spec.dim = 32;
  spec.n_layers = 2;
  spec.n_heads = spec.n_kv_heads = 4;
  spec.vocab_size = 48;
  spec.ffn_hidden = 40;
  spec.kv_lora_rank = 12;
  spec.qk_nope_head_dim = 8;
  spec.qk_rope_head_dim = 4;
  spec.head_dim = 12;
  spec.v_head_dim = 8;
  spec.moe->num_experts = 4;
  spec.moe->top_k = 2;
  spec.moe->hidden = 20;
  return spec;
}

}  // namespace titan::testing
