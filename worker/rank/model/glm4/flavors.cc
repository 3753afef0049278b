#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_hidden, vocab_size, max_seq_len;
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 2, 24, 256, 2048, 4096},
    {"9B", 4096, 40, 32, 2, 128, 13696, 151552, 32768},
};

}  // namespace

std::vector<ModelSpec> glm4_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "glm4";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.head_dim;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = row.max_seq_len;
    spec.eos_id = 151329;
    spec.attention_bias = true;
    spec.attention_out_bias = false;
    spec.rope = RopeStyle::kInterleaved;
    spec.rotary_dim = row.head_dim / 2;
    spec.norm_placement = NormPlacement::kBoth;
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
