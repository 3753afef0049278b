#include <algorithm>
#include <cmath>

#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/layer_lists.h"

// Gemma 2, and the language model of Gemma 3.
namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

constexpr char kGemma2[] = R"({
  "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
  "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true, "attention_bias": false,
  "query_pre_attn_scalar": 256, "sliding_window": 4096, "layer_types": null, "final_logit_softcapping": 30.0,
  "attn_logit_softcapping": 50.0})";

constexpr char kGemma3[] = R"({
  "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
  "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "tie_word_embeddings": true,
  "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096, "layer_types": null,
  "sliding_window_pattern": 6, "final_logit_softcapping": null})";

// A cap of null is off.
void take_cap(Keys& keys, const char* key, double& into) {
  into = 0;
  if (keys.has(key)) keys.need(key, into);
}

// Every n-th layer has no window.
void take_gemma(Keys& keys, int64_t pattern, ModelSpec& spec) {
  keys.need("intermediate_size", spec.ffn_hidden);
  keys.take("attention_bias", spec.attention_bias);
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.dim));
  double scalar = 0;
  keys.need("query_pre_attn_scalar", scalar);
  const bool usual = scalar == static_cast<double>(spec.head_dim);
  spec.attention_scale = usual ? 0 : 1 / std::sqrt(scalar);
  take_cap(keys, "final_logit_softcapping", spec.logit_softcap);
  int64_t window = 0;
  keys.take("sliding_window", window);
  std::vector<bool> layers;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) layers.push_back((layer + 1) % pattern != 0);
  take_windows(keys, window, layers, "sliding_window", spec);
}

void read_gemma2(Keys& keys, ModelSpec& spec) {
  take_gemma(keys, 2, spec);
  take_cap(keys, "attn_logit_softcapping", spec.attention_softcap);
}

void read_gemma3(Keys& keys, ModelSpec& spec) {
  int64_t pattern = 0;
  keys.need("sliding_window_pattern", pattern);
  take_gemma(keys, std::max<int64_t>(pattern, 1), spec);
}

ConfigClass gemma_class(const char* family, const char* like, void (*read)(Keys&, ModelSpec&), const char* computed) {
  return {.family = family,
          .like = like,
          .read = read,
          .computed = json::parse(computed),
          // The classes read hidden_activation; released files also have hidden_act.
          .only = {{"hidden_activation", "gelu_pytorch_tanh"},
                   {"hidden_act", "gelu_pytorch_tanh"},
                   {"use_bidirectional_attention", false}}};
}

}  // namespace

ConfigClasses gemma_classes() {
  ConfigClasses classes = {{"gemma2", gemma_class("gemma2", "2B", read_gemma2, kGemma2)},
                           {"gemma3_text", gemma_class("gemma3", "1B", read_gemma3, kGemma3)}};
  classes["gemma3_text"].ignored = {{"the class writes it and does not read it", {"_sliding_window_pattern"}}};
  classes["gemma3_text"].only["attn_logit_softcapping"] = nullptr;  // The class reads the key and ignores it.
  return classes;
}

}  // namespace titan::hf_config
