#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/layer_lists.h"

// Llama and the classes that differ from it by a few numbers.
namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

// Llama 2 and 3, and what has their class: SmolLM 2, TinyLlama, Yi.
constexpr char kLlama[] = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
  "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false})";

constexpr char kGranite[] = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
  "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false, "embedding_multiplier": 1.0,
  "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0})";

constexpr char kSmolLm3[] = R"({
  "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
  "num_key_value_heads": 4, "vocab_size": 128256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
  "rope_theta": 2e6, "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true,
  "use_sliding_window": false, "sliding_window": null, "layer_types": null, "no_rope_layers": null,
  "no_rope_layer_interval": 4})";

constexpr char kPhi3[] = R"({
  "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
  "vocab_size": 32064, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
  "partial_rotary_factor": 1.0, "sliding_window": null, "tie_word_embeddings": false})";

void read_llama(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.ffn_hidden);
  keys.take("attention_bias", spec.attention_bias);
  keys.take("mlp_bias", spec.mlp_bias);
}

void read_granite(Keys& keys, ModelSpec& spec) {
  read_llama(keys, spec);
  keys.need("embedding_multiplier", spec.embedding_scale);
  keys.need("logits_scaling", spec.logit_divisor);
  keys.need("residual_multiplier", spec.residual_scale);
  keys.need("attention_multiplier", spec.attention_scale);
}

// With use_sliding_window the layers without positions have windows, unless layer_types names others.
void read_smollm3(Keys& keys, ModelSpec& spec) {
  read_llama(keys, spec);
  take_unrotated_layers(keys, spec);
  bool windows = false;
  int64_t window = 0;
  keys.take("use_sliding_window", windows);
  if (windows) keys.take("sliding_window", window);
  std::vector<bool> unrotated;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    unrotated.push_back(window > 0 && !spec.layer_has_positions(layer));
  take_windows(keys, window, unrotated, "use_sliding_window", spec);
}

// Phi 3 and Phi 4. Of the scalings, the class has only LongRoPE, whose factor depends on the length of the text.
void read_phi3(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.ffn_hidden);
  int64_t window = 0;
  keys.take("sliding_window", window);
  take_windows(keys, window, std::vector<bool>(static_cast<size_t>(spec.n_layers), window > 0), "sliding_window", spec);
  if (keys.has("rope_scaling") && !keys.at("rope_scaling").empty()) keys.refuse("rope_scaling", "only null");
  const json table = keys.at("rope_parameters");
  if (table.is_object() && table.value("rope_type", json("default")) != "default")
    keys.refuse("rope_parameters", "only rope_type default");
}

ConfigClass class_of(const char* family, const char* like, void (*read)(Keys&, ModelSpec&), const char* computed) {
  return {.family = family,
          .like = like,
          .read = read,
          .computed = json::parse(computed),
          .only = {{"hidden_act", "silu"}}};
}

}  // namespace

ConfigClasses llama_classes() {
  ConfigClasses classes = {{"llama", class_of("llama3", "8B", read_llama, kLlama)},
                           {"granite", class_of("granite", "8B", read_granite, kGranite)},
                           {"smollm3", class_of("smollm3", "3B", read_smollm3, kSmolLm3)},
                           {"phi3", class_of("phi3", "phi-4", read_phi3, kPhi3)}};
  classes["llama"].ignored = {
      {"the class does not read what SmolLM 2's files add", {"is_llama_config", "rope_interleaved"}}};
  classes["smollm3"].ignored = {{"the class does not read it", {"max_window_layers"}}};
  ConfigClass& phi = classes["phi3"];
  phi.only.update({{"attention_bias", false}, {"mlp_bias", false}, {"lm_head_bias", false}, {"layer_types", nullptr}});
  phi.ignored = {{"the class does not read what Phi's files add", {"interpolate_factor", "full_attn_mod"}}};
  return classes;
}

}  // namespace titan::hf_config
