#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, ffn_hidden, vocab_size, max_seq_len;
  double rope_theta = 1e4;
  int64_t window = 0, rotary_dim = 0;
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 4, 256, 2048, 4096, 1e4, 48, 12},
    {"mini-4k", 3072, 32, 32, 32, 8192, 32064, 4096, 1e4, 2047},
    {"medium-4k", 5120, 40, 40, 10, 17920, 32064, 4096, 1e4, 2047},
    {"phi-4", 5120, 40, 40, 10, 17920, 100352, 16384, 2.5e5},
};

}  // namespace

std::vector<ModelSpec> phi3_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "phi3";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.dim / row.n_heads;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = row.max_seq_len;
    spec.eos_id = row.vocab_size == 100352 ? 100257 : 32000;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = row.rope_theta;
    spec.rotary_dim = row.rotary_dim;
    spec.sliding_window = row.window;
    if (row.window > 0) spec.window_step = 0;
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
