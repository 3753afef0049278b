#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads;
  double ffn_multiplier;
  int64_t ffn_multiple_of, vocab_size;
  Mask mask = Mask::kCausal;
  bool tied = false;
  double rope_factor = 8;
};

constexpr Row kRows[] = {
    {"debugmodel", 256, 6, 16, 16, 1.0, 256, 2048},
    {"debugmodel_flex_attn", 256, 6, 16, 16, 1.0, 256, 2048, Mask::kBlockCausal},
    {"debugmodel_varlen_attn", 256, 6, 16, 16, 1.0, 256, 2048, Mask::kBlockCausal},
    {"bench", 1024, 8, 16, 8, 1.0, 256, 2048},  // Titan's addition, large enough for matmuls to dominate on a CPU.
    {"1B", 2048, 16, 32, 8, 1.5, 1024, 128256, Mask::kCausal, true, 32},  // Llama 3.2
    {"3B", 3072, 28, 24, 8, 1.0, 1024, 128256, Mask::kCausal, true, 32},
    {"8B", 4096, 32, 32, 8, 1.3, 1024, 128256},
    {"8B_flex", 4096, 32, 32, 8, 1.3, 1024, 128256, Mask::kBlockCausal},
    {"8B_varlen", 4096, 32, 32, 8, 1.3, 1024, 128256, Mask::kBlockCausal},
    {"70B", 8192, 80, 64, 8, 1.3, 4096, 128256},
    {"405B", 16384, 126, 128, 8, 1.2, 4096, 128256},
};

}  // namespace

std::vector<ModelSpec> llama3_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "llama3";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.dim / row.n_heads;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = llama_ffn_hidden(row.dim, row.ffn_multiplier, row.ffn_multiple_of);
    spec.max_seq_len = 131072;
    spec.mask = row.mask;
    spec.rope_theta = 500000;
    spec.tied_embeddings = row.tied;
    spec.rope_scaling = LlamaRopeScaling{.factor = row.rope_factor};
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
