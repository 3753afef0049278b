#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_hidden, vocab_size, max_seq_len;
  double rope_theta;
  int64_t window = 0;
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 4, 24, 256, 2048, 4096, 1e4, 48},
    {"7B", 4096, 32, 32, 8, 128, 14336, 32768, 32768, 1e6},  // v0.3
    {"7B_v0.1", 4096, 32, 32, 8, 128, 14336, 32000, 32768, 1e4, 4096},
    {"12B", 5120, 40, 32, 8, 128, 14336, 131072, 131072, 1e6},  // Nemo
    {"24B", 5120, 40, 32, 8, 128, 32768, 131072, 32768, 1e8},   // Small 3
};

}  // namespace

std::vector<ModelSpec> mistral_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "mistral";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.head_dim;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = row.max_seq_len;
    spec.eos_id = 2;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = row.rope_theta;
    spec.sliding_window = row.window;
    if (row.window > 0) spec.window_step = 0;
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
