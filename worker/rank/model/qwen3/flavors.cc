#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, hidden, vocab_size;
  bool tied = false;
  int64_t num_experts = 0;  // 0: dense, and `hidden` is the feed-forward's width; otherwise an expert's width.
  double rope_theta = 1e6;
  int64_t max_seq_len = 4096;
};

constexpr Row kRows[] = {
    {"debugmodel", 256, 8, 16, 8, 3072, 2048, true},
    {"0.6B", 1024, 28, 16, 8, 3072, 151936, true},
    {"1.7B", 2048, 28, 16, 8, 6144, 151936, true},
    {"4B", 2560, 36, 32, 8, 9728, 151936, true},
    {"8B", 4096, 36, 32, 8, 12288, 151936},
    {"14B", 5120, 40, 40, 8, 17408, 151936},
    {"32B", 5120, 64, 64, 8, 25600, 151936},
    {"debugmodel_moe", 256, 8, 16, 8, 768, 2048, false, 64},
    {"30B-A3B", 2048, 48, 32, 4, 768, 151936, false, 128, 1e6, 262144},
    {"235B-A22B", 4096, 94, 64, 4, 1536, 151936, false, 128, 5e6},
};

MoeSpec experts(const Row& row) {
  MoeSpec moe;
  moe.num_experts = row.num_experts;
  moe.num_shared_experts = 0;
  moe.top_k = 8;
  moe.hidden = row.hidden;
  moe.score_func = "softmax";
  moe.route_norm = true;
  moe.score_before_experts = false;
  moe.load_balance_coeff = 0;  // Releases do not have such biases, and torchtitan's training does not change them.
  return moe;
}

}  // namespace

std::vector<ModelSpec> qwen3_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "qwen3";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = 128;
    spec.vocab_size = row.vocab_size;
    spec.max_seq_len = row.max_seq_len;
    spec.norm_eps = 1e-6;
    spec.eos_id = 151645;
    spec.tied_embeddings = row.tied;
    spec.qk_norm = true;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = row.rope_theta;
    if (row.num_experts == 0) {
      spec.ffn_hidden = row.hidden;
    } else {
      spec.moe = experts(row);
    }
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
