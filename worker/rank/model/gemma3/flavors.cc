#include <cmath>

#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_hidden, vocab_size, window, max_seq_len;
  double rope_factor = 0;   // Stretches layers without a window; 0: none.
  double query_scalar = 0;  // The scores are divided by its root; 0: head_dim.
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 7, 8, 4, 24, 256, 2048, 48, 4096, 8, 32},
    {"270M", 640, 18, 4, 1, 256, 2048, 262144, 512, 32768},
    {"1B", 1152, 26, 4, 1, 256, 6912, 262144, 512, 32768},
    {"4B", 2560, 34, 8, 4, 256, 10240, 262208, 1024, 131072, 8},
    {"12B", 3840, 48, 16, 8, 256, 15360, 262208, 1024, 131072, 8},
    {"27B", 5376, 62, 32, 16, 128, 21504, 262208, 1024, 131072, 8, 168},
};

}  // namespace

std::vector<ModelSpec> gemma3_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "gemma3";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.head_dim;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = row.max_seq_len;
    spec.norm_eps = 1e-6;
    spec.eos_id = 1;
    spec.tied_embeddings = true;
    spec.qk_norm = true;
    if (row.query_scalar > 0) spec.attention_scale = 1 / std::sqrt(row.query_scalar);
    spec.sliding_window = row.window;
    spec.window_step = 6;
    spec.window_rope_theta = 1e4;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = 1e6;
    // Every wavelength is longer than an original context of 0.
    if (row.rope_factor > 0) spec.rope_scaling = LlamaRopeScaling{.factor = row.rope_factor, .original_seq_len = 0};
    spec.norm_placement = NormPlacement::kBoth;
    spec.norm_offset = 1;
    spec.activation = Activation::kGeluTanh;
    spec.embedding_scale = std::sqrt(static_cast<double>(row.dim));
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
