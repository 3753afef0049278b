#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, ffn_hidden, vocab_size, max_seq_len;
  double rope_theta, attention_scale, logit_divisor;
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 4, 256, 2048, 4096, 1e4, 0.125, 8},
    {"2B", 2048, 40, 32, 8, 8192, 49155, 131072, 5e6, 0.015625, 8},  // Granite 3.1
    {"8B", 4096, 40, 32, 8, 12800, 49155, 131072, 1e7, 0.0078125, 16},
};

}  // namespace

std::vector<ModelSpec> granite_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "granite";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.dim / row.n_heads;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = row.max_seq_len;
    spec.tied_embeddings = true;
    spec.attention_scale = row.attention_scale;
    spec.embedding_scale = 12;
    spec.residual_scale = 0.22;
    spec.logit_divisor = row.logit_divisor;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = row.rope_theta;
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
