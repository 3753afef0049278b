#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t vocab_size, dim, ffn_hidden, moe_hidden, n_layers, n_dense_layers, n_heads;
  int64_t num_experts, num_shared_experts, top_k, num_expert_groups, num_limited_groups;
  const char* score_func;
  bool route_norm;
  double route_scale;
  int64_t q_lora_rank;
  double mscale;
  Mask mask;
};

constexpr Row kRows[] = {
    {"debugmodel", 2048, 256, 1024, 256, 6, 1, 16, 8, 2, 3, 0, 0, "softmax", false, 1.0, 0, 0.70, Mask::kCausal},
    {"debugmodel_flex_attn", 2048, 256, 1024, 256, 6, 1, 16, 8, 2, 3, 0, 0, "softmax", false, 1.0, 0, 0.70,
     Mask::kBlockCausal},
    {"16B", 102400, 2048, 10944, 1408, 27, 1, 16, 64, 2, 6, 0, 0, "softmax", false, 1.0, 0, 0.70, Mask::kBlockCausal},
    {"236B", 102400, 5120, 12288, 1536, 60, 1, 128, 160, 2, 6, 8, 3, "softmax", false, 16.0, 1536, 1.0,
     Mask::kBlockCausal},
    {"671B", 129280, 7168, 18432, 2048, 61, 3, 128, 256, 1, 8, 8, 4, "sigmoid", true, 2.5, 1536, 1.0,
     Mask::kBlockCausal},
};

MoeSpec experts(const Row& row) {
  MoeSpec moe;
  moe.num_experts = row.num_experts;
  moe.num_shared_experts = row.num_shared_experts;
  moe.top_k = row.top_k;
  moe.hidden = row.moe_hidden;
  moe.score_func = row.score_func;
  moe.route_norm = row.route_norm;
  moe.route_scale = row.route_scale;
  moe.score_before_experts = false;
  moe.num_expert_groups = row.num_expert_groups;
  moe.num_limited_groups = row.num_limited_groups;
  moe.first_layer = row.n_dense_layers;
  return moe;
}

}  // namespace

std::vector<ModelSpec> deepseek_v3_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "deepseek_v3";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = spec.n_kv_heads = row.n_heads;
    spec.vocab_size = row.vocab_size;
    spec.ffn_hidden = row.ffn_hidden;
    spec.max_seq_len = 16384;
    spec.mask = row.mask;
    spec.attention = Attention::kLatent;
    spec.q_lora_rank = row.q_lora_rank;
    spec.kv_lora_rank = 512;
    spec.qk_nope_head_dim = 128;
    spec.qk_rope_head_dim = 64;
    spec.head_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim;
    spec.v_head_dim = 128;
    spec.rope_theta = 10000;
    spec.yarn =
        YarnScaling{.factor = 40, .beta_fast = 32, .beta_slow = 1, .original_seq_len = 4096, .mscale = row.mscale};
    spec.moe = experts(row);
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
