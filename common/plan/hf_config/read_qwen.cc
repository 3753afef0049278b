#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/layer_lists.h"

// Qwen 2 (and 2.5), Qwen 3 and Qwen 3 with experts.
namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

constexpr char kQwen2[] = R"({
  "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 32, "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
  "rope_theta": 1e4, "tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": 4096,
  "max_window_layers": 28, "layer_types": null})";

constexpr char kQwen3[] = R"({
  "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 32, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "attention_bias": false,
  "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28, "layer_types": null})";

constexpr char kQwen3Moe[] = R"({
  "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
  "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
  "rope_theta": 1e4, "tie_word_embeddings": false, "attention_bias": false, "use_sliding_window": false,
  "sliding_window": 4096, "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts": 128,
  "num_experts_per_tok": 8, "norm_topk_prob": false, "mlp_only_layers": null})";

// Layers from max_window_layers on have windows. `by_layer` false: all have.
void take_qwen_windows(Keys& keys, bool by_layer, ModelSpec& spec) {
  bool windows = false;
  int64_t window = 0, first = 0;
  keys.take("use_sliding_window", windows);
  if (windows) keys.take("sliding_window", window);
  if (by_layer) keys.take("max_window_layers", first);
  std::vector<bool> layers;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) layers.push_back(window > 0 && layer >= first);
  take_windows(keys, window, layers, "use_sliding_window", spec);
}

// The projections of queries, keys and values always have a bias, and that of the output has none.
void read_qwen2(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.ffn_hidden);
  take_qwen_windows(keys, /*by_layer=*/true, spec);
}

void read_qwen3(Keys& keys, ModelSpec& spec) {
  keys.take("attention_bias", spec.attention_bias);
  read_qwen2(keys, spec);
}

void read_qwen3_moe(Keys& keys, ModelSpec& spec) {
  keys.take("attention_bias", spec.attention_bias);
  keys.need("moe_intermediate_size", spec.moe->hidden);
  keys.need("num_experts", spec.moe->num_experts);
  keys.need("num_experts_per_tok", spec.moe->top_k);
  keys.take("norm_topk_prob", spec.moe->route_norm);
  keys.expect("decoder_sparse_step", int64_t{1});
  expect_list(keys, "mlp_only_layers", json::array());
  take_qwen_windows(keys, /*by_layer=*/false, spec);
}

}  // namespace

ConfigClasses qwen_classes() {
  const json only = {{"hidden_act", "silu"}};
  return {
      {"qwen2", {.family = "qwen2", .like = "7B", .read = read_qwen2, .computed = json::parse(kQwen2), .only = only}},
      {"qwen3", {.family = "qwen3", .like = "8B", .read = read_qwen3, .computed = json::parse(kQwen3), .only = only}},
      {"qwen3_moe",
       {.family = "qwen3",
        .like = "30B-A3B",
        .read = read_qwen3_moe,
        .computed = json::parse(kQwen3Moe),
        .only = only,
        .ignored = {{"Titan balances experts without an auxiliary loss; output_router_logits true gives a warning",
                     {"output_router_logits", "router_aux_loss_coef"}},
                    {"layers without experts alone read it, and the model has none", {"intermediate_size"}},
                    {"the class has windows in all layers or in none", {"max_window_layers"}}},
        .alias = {"num_local_experts", "num_experts"}}}};
}

}  // namespace titan::hf_config
