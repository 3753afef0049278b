#include <cmath>

#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_hidden, vocab_size, window;
  double query_scalar = 0;  // The scores are divided by its root; 0: head_dim.
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 4, 24, 256, 2048, 48, 32},
    {"2B", 2304, 26, 8, 4, 256, 9216, 256000, 4096},
    {"9B", 3584, 42, 16, 8, 256, 14336, 256000, 4096},
    {"27B", 4608, 46, 32, 16, 128, 36864, 256000, 4096, 144},
};

}  // namespace

std::vector<ModelSpec> gemma2_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "gemma2";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.head_dim;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = 8192;
    spec.norm_eps = 1e-6;
    spec.eos_id = 1;
    spec.tied_embeddings = true;
    if (row.query_scalar > 0) spec.attention_scale = 1 / std::sqrt(row.query_scalar);
    spec.attention_softcap = 50;
    spec.logit_softcap = 30;
    spec.sliding_window = row.window;
    spec.rope = RopeStyle::kRotateHalf;
    spec.norm_placement = NormPlacement::kBoth;
    spec.norm_offset = 1;
    spec.activation = Activation::kGeluTanh;
    spec.embedding_scale = std::sqrt(static_cast<double>(row.dim));
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
