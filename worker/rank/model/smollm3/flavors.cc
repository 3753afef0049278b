#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, ffn_hidden, vocab_size, max_seq_len;
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 4, 256, 2048, 4096},
    {"3B", 2048, 36, 16, 4, 11008, 128256, 65536},
};

}  // namespace

std::vector<ModelSpec> smollm3_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "smollm3";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.dim / row.n_heads;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = row.max_seq_len;
    spec.norm_eps = 1e-6;
    spec.eos_id = 128001;
    spec.tied_embeddings = true;
    spec.nope_layer_step = 4;
    spec.nope_ends_step = true;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = 5e6;
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
