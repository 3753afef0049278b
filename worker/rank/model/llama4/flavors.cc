#include "common/plan/models/families.h"

namespace titan::models {
namespace {

ModelSpec base(const char* flavor) {
  ModelSpec spec;
  spec.name = "llama4";
  spec.flavor = flavor;
  spec.rope_theta = 500000;
  spec.vocab_size = 202048;
  spec.max_seq_len = 1048576;
  return spec;
}

// The experts' width is the dense width before rounding, divided among the experts that process a token.
int64_t expert_hidden(int64_t dim, double multiplier, int64_t multiple_of, const MoeSpec& moe) {
  const int64_t whole = llama_ffn_hidden(dim, multiplier, 1) / (moe.top_k + moe.num_shared_experts);
  return (whole + multiple_of - 1) / multiple_of * multiple_of;
}

ModelSpec debug(const char* flavor) {
  ModelSpec spec = base(flavor);
  spec.dim = 256;
  spec.n_layers = 6;
  spec.n_heads = spec.n_kv_heads = 16;
  spec.head_dim = spec.v_head_dim = 16;
  spec.vocab_size = 2048;
  spec.ffn_hidden = llama_ffn_hidden(spec.dim, 1.0, 256);
  spec.rope_scaling = LlamaRopeScaling{16, 1, 1, 8192};
  MoeSpec moe;
  moe.layer_step = 2;
  moe.hidden = expert_hidden(spec.dim, 1.0, 256, moe);
  spec.moe = moe;
  return spec;
}

ModelSpec large(const char* flavor, int64_t num_experts, int64_t layer_step) {
  ModelSpec spec = base(flavor);
  spec.dim = 5120;
  spec.n_layers = 48;
  spec.n_heads = 40;
  spec.n_kv_heads = 8;
  spec.head_dim = spec.v_head_dim = 128;
  spec.ffn_hidden = layer_step == 1 ? 0 : llama_ffn_hidden(spec.dim, 1.2, 2048);
  MoeSpec moe;
  moe.num_experts = num_experts;
  moe.layer_step = layer_step;
  moe.hidden = expert_hidden(spec.dim, 1.2, 2048, moe);
  spec.moe = moe;
  return spec;
}

ModelSpec scout(const char* flavor) {
  ModelSpec spec = large(flavor, 16, 1);
  spec.rope_scaling = LlamaRopeScaling{16, 1, 1, 8192};
  spec.max_seq_len = 10485760;
  return spec;
}

ModelSpec maverick(const char* flavor) { return large(flavor, 128, 2); }

// Every fourth layer has no positions. The others attend within fixed blocks of tokens.
ModelSpec with_irope(ModelSpec spec, int64_t chunk) {
  spec.nope_layer_step = 4;
  spec.attention_chunk = chunk;
  spec.mask = Mask::kBlockCausal;
  return spec;
}

// Settings of the released weights, which torchtitan's flavors omit.
ModelSpec released(ModelSpec spec, bool rotated_qk_norm) {
  spec.nope_ends_step = true;
  spec.query_temperature_floor = static_cast<double>(spec.attention_chunk);
  spec.rotated_qk_norm = rotated_qk_norm;
  return spec;
}

}  // namespace

std::vector<ModelSpec> llama4_flavors() {
  return {debug("debugmodel"),
          scout("17bx16e"),
          maverick("17bx128e"),
          with_irope(debug("debugmodel_irope"), 256),
          with_irope(scout("17bx16e_irope"), 8192),
          with_irope(maverick("17bx128e_irope"), 8192),
          released(with_irope(debug("debugmodel_released"), 256), true),
          released(with_irope(scout("17bx16e_released"), 8192), true),
          released(with_irope(maverick("17bx128e_released"), 8192), false)};
}

}  // namespace titan::models
