#include "common/plan/hf_config/config_class.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/nearest.h"

namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

constexpr int64_t kMaxLayers = 100'000;
constexpr size_t kShownValue = 80;

bool is_among(const std::string& key, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

bool is_ignored(const std::string& key, const std::vector<IgnoredKeys>& groups) {
  return std::any_of(groups.begin(), groups.end(), [&](const IgnoredKeys& one) { return is_among(key, one.names); });
}

// A number stands for a truth value as in Python.
bool same_setting(const json& value, const json& only) {
  if (only.is_boolean() && value.is_number()) return (value != 0) == only.get<bool>();
  return value == only;
}

std::vector<std::string> names_of(const ConfigClass& config) {
  std::vector<std::string> names = computed_everywhere();
  for (const json* list : {&config.computed, &config.only}) {
    for (const auto& [key, value] : list->items()) names.push_back(key);
  }
  return names;
}

}  // namespace

const std::vector<std::string>& dropout_keys() {
  static const auto& keys = *new std::vector<std::string>{"attention_dropout", "resid_pdrop",      "embd_pdrop",
                                                          "hidden_dropout",    "residual_dropout", "ffn_dropout"};
  return keys;
}

const std::vector<std::string>& computed_everywhere() {
  static const auto& keys = *new std::vector<std::string>{"model_type",
                                                          "num_key_value_heads",
                                                          "head_dim",
                                                          "tie_word_embeddings",
                                                          "rope_theta",
                                                          "rope_scaling",
                                                          "rope_parameters",
                                                          "partial_rotary_factor",
                                                          "hidden_size",
                                                          "num_hidden_layers",
                                                          "num_attention_heads",
                                                          "vocab_size",
                                                          "rms_norm_eps",
                                                          "max_position_embeddings",
                                                          "original_max_position_embeddings"};
  return keys;
}

const std::vector<IgnoredKeys>& ignored_everywhere() {
  static const auto& groups = *new std::vector<IgnoredKeys>{
      {"names the file, its writer or its code",
       {"architectures", "_name_or_path", "name_or_path", "_commit_hash", "auto_map", "transformers_version",
        "transformers.js_config", "unsloth_version", "unsloth_fixed", "_attn_implementation",
        "_attn_implementation_autoset", "attn_implementation", "custom_pipelines", "trust_remote_code"}},
      {"the files of the weights state their types",
       {"dtype", "torch_dtype", "use_bfloat16", "quantization_config", "compression_config"}},
      {"generation alone reads it",
       {"use_cache",
        "cache_implementation",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "bad_words_ids",
        "begin_suppress_tokens",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "prefix"}},
      {"initial values alone depend on it", {"initializer_range", "initializer_factor"}},
      {"chooses what a call returns",
       {"output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "torchscript"}},
      {"splits products without changing them", {"pretraining_tp", "chunk_size_feed_forward"}},
      {"models for other tasks read it",
       {"problem_type", "num_labels", "id2label", "label2id", "finetuning_task", "task_specific_params",
        "classifier_dropout", "tokenizer_class", "is_decoder", "is_encoder_decoder", "add_cross_attention",
        "cross_attention_hidden_size", "tie_encoder_decoder", "tf_legacy_loss", "pruned_heads"}},
      {"Titan has no dropout; a value above 0 gives a warning", dropout_keys()}};
  return groups;
}

void check_keys(Keys& file, const std::string& model_type, const ConfigClass& config) {
  const std::vector<std::string> names = names_of(config);
  for (const auto& [key, value] : file.object().items()) {
    if (value.is_null() || is_ignored(key, ignored_everywhere()) || is_ignored(key, config.ignored)) continue;
    if (config.only.contains(key)) {
      if (same_setting(value, config.only[key])) continue;
      return file.refuse(key, absl::StrCat("only ", config.only[key].dump()));
    }
    if (is_among(key, names) || key == config.alias.second) continue;
    file.fail(absl::InvalidArgumentError(absl::StrCat(
        "config.json: ", key, " is ", value.dump().substr(0, kShownValue), ": Titan does not compute it for ",
        model_type, did_you_mean(key, names), "; delete the key if the model does not depend on it")));
  }
}

json with_defaults(Keys& file, const ConfigClass& config) {
  json all = config.computed;
  const AttributeAlias& alias = config.alias;
  for (const auto& [key, value] : file.object().items()) {
    if (key != alias.second) all[key] = value;
  }
  if (alias.second.empty() || !file.object().contains(alias.second)) return all;
  const json& second = file.object()[alias.second];
  if (file.has(alias.first) && file.at(alias.first) != second)
    file.refuse(alias.second, absl::StrCat("the same as ", alias.first));
  all[alias.first] = second;
  return all;
}

void take_common(Keys& keys, ModelSpec& spec) {
  keys.need("hidden_size", spec.dim);
  keys.need("num_hidden_layers", spec.n_layers);
  if (spec.n_layers > kMaxLayers) {
    keys.refuse("num_hidden_layers", absl::StrCat("at most ", kMaxLayers));
    spec.n_layers = 0;  // Readers make lists of this length.
  }
  keys.need("num_attention_heads", spec.n_heads);
  keys.need("vocab_size", spec.vocab_size);
  keys.need("max_position_embeddings", spec.max_seq_len);
  keys.need("rms_norm_eps", spec.norm_eps);
  spec.tied_embeddings = false;
  keys.take("tie_word_embeddings", spec.tied_embeddings);
  if (spec.n_heads > 0) spec.head_dim = spec.dim / spec.n_heads;
  spec.n_kv_heads = spec.n_heads;
  keys.take("num_key_value_heads", spec.n_kv_heads);
  keys.take("head_dim", spec.head_dim);
  spec.v_head_dim = spec.head_dim;
}

const ConfigClasses& config_classes() {
  static const ConfigClasses& all = [] {
    auto* classes = new ConfigClasses;
    for (const auto& part : {llama_classes, mistral_classes, qwen_classes, deepseek_classes, gpt_oss_classes,
                             llama4_classes, post_norm_classes, gemma_classes})
      classes->merge(part());
    return std::ref(*classes);
  }();
  return all;
}

}  // namespace titan::hf_config
