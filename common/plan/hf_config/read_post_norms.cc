#include "common/plan/hf_config/config_class.h"

// OLMo 2 and GLM-4, which also normalize what attention and feed-forward add.
namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

constexpr char kOlmo2[] = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "vocab_size": 50304, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
  "tie_word_embeddings": false, "attention_bias": false})";

constexpr char kGlm4[] = R"({
  "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 32,
  "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552, "max_position_embeddings": 131072,
  "rms_norm_eps": 1.5625e-7, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "tie_word_embeddings": false,
  "attention_bias": true})";

// In GLM-4 the bias is only on queries, keys and values, which its flavors state.
void read_post_norms(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.ffn_hidden);
  keys.take("attention_bias", spec.attention_bias);
}

}  // namespace

ConfigClasses post_norm_classes() {
  const json only = {{"hidden_act", "silu"}};
  return {{"olmo2",
           {.family = "olmo2", .like = "7B", .read = read_post_norms, .computed = json::parse(kOlmo2), .only = only}},
          {"glm4",
           {.family = "glm4", .like = "9B", .read = read_post_norms, .computed = json::parse(kGlm4), .only = only}}};
}

}  // namespace titan::hf_config
