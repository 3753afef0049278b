#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Row {
  const char* flavor;
  int64_t dim, n_layers, num_experts;
};

constexpr Row kRows[] = {{"debugmodel", 256, 4, 8}, {"20b", 2880, 24, 32}, {"120b", 2880, 36, 128}};

MoeSpec experts(int64_t num_experts) {
  MoeSpec moe;
  moe.num_experts = num_experts;
  moe.num_shared_experts = 0;
  moe.top_k = 4;
  moe.hidden = 2880;
  moe.score_func = "softmax";
  moe.route_norm = true;
  moe.gate_bias = true;
  moe.score_before_experts = false;
  return moe;
}

}  // namespace

std::vector<ModelSpec> gpt_oss_flavors() {
  std::vector<ModelSpec> specs;
  for (const Row& row : kRows) {
    ModelSpec spec;
    spec.name = "gpt_oss";
    spec.flavor = row.flavor;
    spec.dim = row.dim;
    spec.n_layers = row.n_layers;
    spec.n_heads = 64;
    spec.n_kv_heads = 8;
    spec.head_dim = spec.v_head_dim = 64;
    spec.vocab_size = 201088;
    spec.max_seq_len = 131072;
    spec.attention_bias = true;
    spec.attention_sinks = true;
    spec.sliding_window = 128;
    spec.rope = RopeStyle::kRotateHalf;
    spec.rope_theta = 150000;
    spec.yarn = YarnScaling{.factor = 32,
                            .beta_fast = 32,
                            .beta_slow = 1,
                            .original_seq_len = 4096,
                            .only_beyond_original = false,
                            .scales_cos_sin = true};
    spec.swiglu_limit = 7;
    spec.moe = experts(row.num_experts);
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace titan::models
