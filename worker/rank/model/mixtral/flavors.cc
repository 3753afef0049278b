#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, expert_hidden, vocab_size, max_seq_len, num_experts;
};

constexpr Row kRows[] = {
    {"debugmodel", 128, 4, 8, 4, 16, 128, 2048, 4096, 4},
    {"8x7B", 4096, 32, 32, 8, 128, 14336, 32000, 32768, 8},
    {"8x22B", 6144, 56, 48, 8, 128, 16384, 32000, 65536, 8},
};

MoeSpec experts(const Row& row) {
  MoeSpec moe;
  moe.num_experts = row.num_experts;
  moe.num_shared_experts = 0;
  moe.top_k = 2;
  moe.hidden = row.expert_hidden;
  moe.score_func = "softmax";
  moe.route_norm = true;
  moe.score_before_experts = false;
  moe.load_balance_coeff = 0;  // Releases do not have such biases.
  return moe;
}

}  // namespace

std::vector<ModelSpec> mixtral_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "mixtral";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = row.n_heads;
    spec.n_kv_heads = row.n_kv_heads;
    spec.head_dim = spec.v_head_dim = row.head_dim;
    spec.vocab_size = row.vocab_size;
    spec.max_seq_len = row.max_seq_len;
    spec.eos_id = 2;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = 1e6;
    spec.moe = experts(row);
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
