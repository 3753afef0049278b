#include "common/plan/meta_config/params.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/keys.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"

namespace titan::meta_config {
namespace {

using hf_config::Keys;
using models::ModelSpec;
using nlohmann::json;

const std::set<std::string> kLlamaKeys = {"dim",
                                          "n_layers",
                                          "n_heads",
                                          "n_kv_heads",
                                          "head_dim",
                                          "vocab_size",
                                          "multiple_of",
                                          "ffn_dim_multiplier",
                                          "norm_eps",
                                          "rope_theta",
                                          "use_scaled_rope",
                                          "rope_scaling_factor",
                                          "rope_high_freq_factor",
                                          "max_batch_size",
                                          "max_seq_len",
                                          "quantization_args",
                                          "lora_args"};
const std::set<std::string> kLlama4Keys = {
    "ffn_exp",     "attention_chunk_size", "nope_layer_interval", "use_qk_norm", "moe_args", "attn_temperature_tuning",
    "floor_scale", "attn_scale",           "vision_args"};
const std::set<std::string> kMistralKeys = {"hidden_dim", "sliding_window"};
const std::set<std::string> kExpertKeys = {"num_experts", "capacity_factor", "auto_scale_F", "top_k",
                                           "interleave_moe_layer_step"};

constexpr int64_t kLlama3Vocabulary = 128256;

void refuse_unknown(Keys& keys, std::initializer_list<const std::set<std::string>*> known) {
  for (const auto& [key, value] : keys.object().items()) {
    const bool found = std::any_of(known.begin(), known.end(), [&](const auto* set) { return set->contains(key); });
    if (!found) return keys.refuse(key, "a release without this key");
  }
}

// Refuses numbers that no model has, before anything is computed from them.
void check_ranges(Keys& keys) {
  constexpr double kMostWidth = 1 << 24, kMostLayers = 1e5, kMostFactor = 1e9;
  const auto check = [&](const char* key, double least, double most) {
    const json value = keys.at(key);
    if (!value.is_number() || (value.get<double>() >= least && value.get<double>() <= most)) return;
    keys.refuse(key, absl::StrCat("a number from ", least, " to ", most));
  };
  for (const char* key : {"dim", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "multiple_of"})
    check(key, 1, kMostWidth);
  check("n_layers", 1, kMostLayers);
  check("vocab_size", -1, kMostWidth);
  constexpr double kLeastFactor = 1e-20;
  for (const char* key : {"norm_eps", "rope_theta", "rope_scaling_factor", "rope_high_freq_factor",
                          "ffn_dim_multiplier", "ffn_exp", "floor_scale"})
    check(key, kLeastFactor, kMostFactor);
  check("max_seq_len", 1, kMostFactor);
}

int64_t rounded_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

void take_vocabulary(Keys& keys, int64_t in_weights, ModelSpec& spec) {
  spec.vocab_size = in_weights;
  if (keys.has("vocab_size") && keys.at("vocab_size") != json(-1)) keys.take("vocab_size", spec.vocab_size);
  if (spec.vocab_size <= 0) keys.refuse("vocab_size", "an integer above 0, unless the weights are next to it,");
}

void take_common(Keys& keys, int64_t vocab_in_weights, ModelSpec& spec) {
  keys.need("dim", spec.dim);
  keys.need("n_layers", spec.n_layers);
  keys.need("n_heads", spec.n_heads);
  spec.n_kv_heads = spec.n_heads;
  keys.take("n_kv_heads", spec.n_kv_heads);
  spec.head_dim = spec.n_heads > 0 ? spec.dim / spec.n_heads : 0;
  keys.take("head_dim", spec.head_dim);
  spec.v_head_dim = spec.head_dim;
  spec.norm_eps = 1e-5;
  keys.take("norm_eps", spec.norm_eps);
  spec.rope_theta = 10000;
  keys.take("rope_theta", spec.rope_theta);
  take_vocabulary(keys, vocab_in_weights, spec);
  for (const char* key : {"quantization_args", "lora_args"}) {
    if (keys.has(key)) keys.refuse(key, "only null");
  }
}

// Returns the width of a dense feed-forward in Meta's programs.
int64_t feed_forward_width(Keys& keys, const ModelSpec& spec) {
  int64_t multiple = 256;
  double multiplier = 1;
  keys.take("multiple_of", multiple);
  keys.take("ffn_dim_multiplier", multiplier);
  if (multiple <= 0) keys.refuse("multiple_of", "an integer above 0");
  return multiple > 0 ? models::llama_ffn_hidden(spec.dim, multiplier, multiple) : 0;
}

// Whether the sizes are those of Llama 3.2's small models. Their params.json states neither that the head is tied to
// the embedding nor that positions are stretched by 32.
bool is_small_llama(const ModelSpec& spec) {
  const bool one = spec.dim == 2048 && spec.n_layers == 16, three = spec.dim == 3072 && spec.n_layers == 28;
  return spec.vocab_size == kLlama3Vocabulary && (one || three);
}

void take_scaling(Keys& keys, double factor, double high, MetaModel& model) {
  bool scaled = false;
  keys.take("use_scaled_rope", scaled);
  model.spec.rope_scaling.reset();
  if (!scaled) return;
  models::LlamaRopeScaling scaling{.factor = factor, .low_freq_factor = 1, .high_freq_factor = high};
  keys.take("rope_scaling_factor", scaling.factor);
  keys.take("rope_high_freq_factor", scaling.high_freq_factor);
  model.spec.rope_scaling = scaling;
  model.states_scaling = keys.has("rope_scaling_factor");
}

void take_llama(Keys& keys, MetaModel& model) {
  refuse_unknown(keys, {&kLlamaKeys});
  ModelSpec& spec = model.spec;
  spec.ffn_hidden = feed_forward_width(keys, spec);
  take_scaling(keys, is_small_llama(spec) ? 32 : 8, 4, model);
  spec.tied_embeddings = is_small_llama(spec);
  spec.max_seq_len = spec.rope_scaling ? 131072 : spec.rope_theta > 10000 ? 8192 : 4096;
}

void take_mistral(Keys& keys, MetaModel& model) {
  refuse_unknown(keys, {&kLlamaKeys, &kMistralKeys});
  keys.need("hidden_dim", model.spec.ffn_hidden);
  keys.need("head_dim", model.spec.head_dim);
  model.spec.v_head_dim = model.spec.head_dim;
  keys.need("rope_theta", model.spec.rope_theta);  // Programs disagree about its default.
  if (keys.has("sliding_window")) keys.refuse("sliding_window", "only null");
  take_scaling(keys, 8, 4, model);
  model.spec.max_seq_len = 32768;
  keys.take("max_seq_len", model.spec.max_seq_len);
}

// Returns an expert's width: the width of a dense layer before rounding, divided among the experts of a token.
int64_t expert_width(Keys& keys, Keys& experts, double capacity, const ModelSpec& spec) {
  double widening = 4, multiplier = 1;
  int64_t multiple = 256;
  keys.take("ffn_exp", widening);
  keys.take("ffn_dim_multiplier", multiplier);
  keys.take("multiple_of", multiple);
  auto width = static_cast<int64_t>(widening * static_cast<double>(spec.dim));
  width = static_cast<int64_t>(2.0 * static_cast<double>(width) / 3.0);
  width = static_cast<int64_t>(multiplier * static_cast<double>(width));
  bool scales = true;
  experts.take("auto_scale_F", scales);
  if (scales) width = static_cast<int64_t>(static_cast<double>(width) / (capacity + 1));
  return multiple > 0 ? rounded_up(width, multiple) : 0;
}

void take_experts(Keys& keys, ModelSpec& spec) {
  if (!keys.at("moe_args").is_object()) return keys.refuse("moe_args", "an object");
  Keys experts(keys.at("moe_args"), "moe_args.", kParamsName);
  refuse_unknown(experts, {&kExpertKeys});
  models::MoeSpec& moe = *spec.moe;
  experts.need("num_experts", moe.num_experts);
  moe.top_k = moe.layer_step = 1;
  experts.take("top_k", moe.top_k);
  experts.take("interleave_moe_layer_step", moe.layer_step);
  double capacity = 1;
  experts.take("capacity_factor", capacity);
  if (!(capacity >= 0)) return keys.refuse("moe_args", "an object whose capacity_factor is not negative");
  moe.hidden = expert_width(keys, experts, capacity, spec);
  spec.ffn_hidden = moe.layer_step == 1 ? 0 : feed_forward_width(keys, spec);
  keys.fail(experts.status());
}

void take_llama4(Keys& keys, MetaModel& model) {
  refuse_unknown(keys, {&kLlamaKeys, &kLlama4Keys});
  ModelSpec& spec = model.spec;
  take_experts(keys, spec);
  take_scaling(keys, 16, 1, model);
  spec.nope_layer_step = spec.attention_chunk = 0;
  keys.take("nope_layer_interval", spec.nope_layer_step);
  keys.take("attention_chunk_size", spec.attention_chunk);
  spec.nope_ends_step = spec.nope_layer_step > 0;
  if (spec.attention_chunk > 0 && spec.nope_layer_step == 0)
    keys.refuse("attention_chunk_size", "only null, without nope_layer_interval,");
  spec.rotated_qk_norm = false;
  keys.take("use_qk_norm", spec.rotated_qk_norm);
  bool tuned = false;
  keys.take("attn_temperature_tuning", tuned);
  model.states_temperature = keys.has("attn_temperature_tuning");
  spec.query_temperature_floor = tuned ? 8192 : 0;
  if (tuned) {
    keys.take("floor_scale", spec.query_temperature_floor);
    keys.take("attn_scale", spec.query_temperature_scale);
  }
  if (keys.has("vision_args")) model.notes.push_back("vision_args: only the language model is read");
}

}  // namespace

absl::StatusOr<MetaModel> read_params(const json& params, int64_t vocab_size) {
  if (!params.is_object()) return absl::InvalidArgumentError(absl::StrCat(kParamsName, ": not a JSON object"));
  const auto inner = params.find("model");  // Some releases nest it.
  Keys keys(inner != params.end() && inner->is_object() ? *inner : params, "", kParamsName);
  if (keys.has("moe")) keys.refuse("moe", "only null");
  const bool mistral = keys.has("hidden_dim");
  const bool fourth =
      std::any_of(kLlama4Keys.begin(), kLlama4Keys.end(), [&](const auto& key) { return keys.has(key); });
  TITAN_RETURN_IF_ERROR(keys.status());
  MetaModel model;
  TITAN_ASSIGN_OR_RETURN(model.spec,
                         fourth ? models::find("llama4", "17bx16e_released") : models::find("llama3", "8B"));
  model.spec.flavor = "config.json";
  model.spec.mask = models::Mask::kCausal;  // Document packing is a choice of training.
  check_ranges(keys);
  TITAN_RETURN_IF_ERROR(keys.status());
  take_common(keys, vocab_size, model.spec);
  (mistral ? take_mistral : fourth ? take_llama4 : take_llama)(keys, model);
  TITAN_RETURN_IF_ERROR(keys.status());
  const std::string wrong = models::inconsistency(model.spec);
  if (wrong.empty()) return model;
  return absl::InvalidArgumentError(absl::StrCat(kParamsName, ": ", wrong));
}

}  // namespace titan::meta_config
