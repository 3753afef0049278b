#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, ffn_hidden, vocab_size, max_seq_len;
  double norm_eps = 1e-6;
  bool tied = false;
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 4, 256, 2048, 4096, 1e-6, true},
    {"0.5B", 896, 24, 14, 2, 4864, 151936, 32768, 1e-6, true},  // Qwen 2.5
    {"1.5B", 1536, 28, 12, 2, 8960, 151936, 131072, 1e-6, true},
    {"3B", 2048, 36, 16, 2, 11008, 151936, 32768, 1e-6, true},
    {"7B", 3584, 28, 28, 4, 18944, 152064, 131072},
    {"14B", 5120, 48, 40, 8, 13824, 152064, 131072, 1e-5},
    {"32B", 5120, 64, 40, 8, 27648, 152064, 131072, 1e-5},
    {"72B", 8192, 80, 64, 8, 29568, 152064, 131072, 1e-5},
};

}  // namespace

std::vector<ModelSpec> qwen2_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "qwen2";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.dim / row.n_heads;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = row.max_seq_len;
    spec.norm_eps = row.norm_eps;
    spec.eos_id = 151643;
    spec.tied_embeddings = row.tied;
    spec.attention_bias = true;
    spec.attention_out_bias = false;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = 1e6;
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
