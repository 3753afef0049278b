#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/layer_lists.h"

namespace titan::hf_config {
namespace {

using models::ModelSpec;

constexpr char kGptOss[] = R"({
  "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
  "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-5, "rope_theta": 1.5e5, "tie_word_embeddings": false, "num_local_experts": 128,
  "num_experts_per_tok": 4, "sliding_window": 128, "layer_types": null, "swiglu_limit": 7.0,
  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                   "original_max_position_embeddings": 4096}})";

void read_gpt_oss(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.moe->hidden);
  keys.need("num_local_experts", spec.moe->num_experts);
  keys.need("num_experts_per_tok", spec.moe->top_k);
  keys.need("swiglu_limit", spec.swiglu_limit);
  int64_t window = 0;
  keys.need("sliding_window", window);
  std::vector<bool> even;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) even.push_back(layer % 2 == 0);
  take_windows(keys, window, even, "sliding_window", spec);
}

}  // namespace

ConfigClasses gpt_oss_classes() {
  return {{"gpt_oss",
           {.family = "gpt_oss",
            .like = "20b",
            .read = read_gpt_oss,
            .computed = nlohmann::json::parse(kGptOss),
            .only = {{"hidden_act", "silu"}, {"attention_bias", true}, {"swiglu_alpha", 1.702}},
            .ignored = {{"Titan balances experts without an auxiliary loss; output_router_logits true gives a warning",
                         {"output_router_logits", "router_aux_loss_coef"}},
                        {"the class reads num_experts_per_tok and the table of positions instead",
                         {"experts_per_token", "initial_context_length"}}},
            .alias = {"num_experts", "num_local_experts"}}}};
}

}  // namespace titan::hf_config
