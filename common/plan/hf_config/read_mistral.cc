#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/layer_lists.h"

// Mistral, and Mixtral's experts.
namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

constexpr char kMistral[] = R"({
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
  "rope_theta": 1e4, "sliding_window": 4096, "layer_types": null, "tie_word_embeddings": false})";

constexpr char kMixtral[] = R"({
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
  "rope_theta": 1e6, "sliding_window": null, "tie_word_embeddings": false, "num_experts_per_tok": 2,
  "num_local_experts": 8})";

// All layers have the window, or none. The class ignores layer_types, so a list must say the same.
void take_one_window(Keys& keys, ModelSpec& spec) {
  int64_t window = 0;
  keys.take("sliding_window", window);
  const std::vector<bool> all(static_cast<size_t>(spec.n_layers), window > 0);
  const json same(std::vector<std::string>(static_cast<size_t>(spec.n_layers),
                                           window > 0 ? "sliding_attention" : "full_attention"));
  expect_list(keys, "layer_types", same);
  take_windows(keys, window, all, "sliding_window", spec);
}

void read_mistral(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.ffn_hidden);
  take_one_window(keys, spec);
}

void read_mixtral(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.moe->hidden);
  keys.need("num_local_experts", spec.moe->num_experts);
  keys.need("num_experts_per_tok", spec.moe->top_k);
  take_one_window(keys, spec);
}

}  // namespace

ConfigClasses mistral_classes() {
  const json only = {{"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false}};
  return {{"mistral",
           {.family = "mistral", .like = "7B", .read = read_mistral, .computed = json::parse(kMistral), .only = only}},
          {"mixtral",
           {.family = "mixtral",
            .like = "8x7B",
            .read = read_mixtral,
            .computed = json::parse(kMixtral),
            .only = only,
            .ignored = {{"Titan balances experts without an auxiliary loss; output_router_logits true gives a warning",
                         {"output_router_logits", "router_aux_loss_coef"}},
                        {"Titan adds no noise; a value above 0 gives a warning", {"router_jitter_noise"}}},
            .alias = {"num_experts", "num_local_experts"}}}};
}

}  // namespace titan::hf_config
