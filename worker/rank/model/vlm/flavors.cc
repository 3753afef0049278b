#include "common/plan/models/families.h"

namespace titan::models {
namespace {

// The numbers of llama3's debugmodel_flex_attn.
ModelSpec language_model() {
  ModelSpec spec;
  spec.name = "vlm";
  spec.dim = 256;
  spec.n_layers = 6;
  spec.n_heads = spec.n_kv_heads = 16;
  spec.head_dim = spec.v_head_dim = 16;
  spec.vocab_size = 2048;
  spec.ffn_hidden = llama_ffn_hidden(spec.dim, 1.0, 256);
  spec.max_seq_len = 131072;
  spec.mask = Mask::kBlockCausal;
  spec.rope_theta = 500000;
  spec.rope_scaling = LlamaRopeScaling{};
  return spec;
}

ModelSpec debugmodel() {
  ModelSpec spec = language_model();
  spec.flavor = "debugmodel";
  spec.vision = VisionSpec{.dim = 128, .ffn_hidden = 256, .n_layers = 4, .n_heads = 2, .out_dim = spec.dim};
  return spec;
}

// Titan's own, for tests in seconds.
ModelSpec tiny_debug() {
  ModelSpec spec = language_model();
  spec.flavor = "tiny-debug";
  spec.dim = 64;
  spec.n_layers = 2;
  spec.n_heads = spec.n_kv_heads = 4;
  spec.vocab_size = 512;
  spec.ffn_hidden = llama_ffn_hidden(spec.dim, 1.0, 32);
  spec.vision = VisionSpec{.dim = 32,
                           .ffn_hidden = 64,
                           .n_layers = 2,
                           .n_heads = 2,
                           .patch_size = 4,
                           .position_side = 4,
                           .out_dim = spec.dim};
  return spec;
}

}  // namespace

std::vector<ModelSpec> vlm_flavors() { return {debugmodel(), tiny_debug()}; }

}  // namespace titan::models
