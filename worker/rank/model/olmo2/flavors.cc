#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, ffn_hidden, vocab_size;
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 4, 256, 2048}, {"1B", 2048, 16, 16, 16, 8192, 100352},
    {"7B", 4096, 32, 32, 32, 11008, 100352}, {"13B", 5120, 40, 40, 40, 13824, 100352},
    {"32B", 5120, 64, 40, 8, 27648, 100352},
};

}  // namespace

std::vector<ModelSpec> olmo2_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "olmo2";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.dim / row.n_heads;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = 4096;
    spec.norm_eps = 1e-6;
    spec.eos_id = 100257;
    spec.qk_norm = true;
    spec.qk_norm_whole = true;
    spec.norm_placement = NormPlacement::kPost;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = 500000;
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
