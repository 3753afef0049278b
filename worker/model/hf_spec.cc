#include "worker/model/hf_spec.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/models/registry.h"
#include "common/status/status.h"

namespace titan::model {
namespace {

using models::ModelSpec;
using nlohmann::json;

// Reads keys one after the other; the first that is no such thing is the error.
class Keys {
 public:
  explicit Keys(const json& config) : config_(config) {}

  bool has(const char* key) const { return config_.contains(key) && !config_.at(key).is_null(); }

  // Left alone where the file does not say.
  void take(const char* key, int64_t& into) {
    if (!has(key)) return;
    const json& there = config_.at(key);
    if (there.is_number_integer() && there >= 0 && there < (int64_t{1} << 40)) {
      into = there.get<int64_t>();
    } else {
      refuse(key, "a whole number");
    }
  }
  void take(const char* key, double& into) {
    if (has(key)) config_.at(key).is_number() ? void(into = config_.at(key).get<double>()) : refuse(key, "a number");
  }
  void take(const char* key, bool& into) {
    if (has(key))
      config_.at(key).is_boolean() ? void(into = config_.at(key).get<bool>()) : refuse(key, "true or false");
  }
  void take(const char* key, std::string& into) {
    if (has(key)) config_.at(key).is_string() ? void(into = config_.at(key).get<std::string>()) : refuse(key, "a text");
  }
  void need(const char* key, int64_t& into) {
    into = 0;
    take(key, into);
    if (into <= 0) refuse(key, "a whole number above 0");
  }
  // What this code computes; anything else changes results.
  template <typename T>
  void expect(const char* key, const T& only) {
    T there = only;
    take(key, there);
    if (there != only) refuse(key, absl::StrCat("only ", json(only).dump()));
  }

  void refuse(const std::string& key, const std::string& expected) {
    if (!status_.ok()) return;
    const std::string there = config_.contains(key) ? config_.at(key).dump() : "nothing";
    status_ = absl::InvalidArgumentError(
        absl::StrCat("config.json: ", key, " is ", there.substr(0, 80), "; ", expected, " can be read here"));
  }
  const absl::Status& status() const { return status_; }
  json at(const char* key) const { return has(key) ? config_.at(key) : json(); }

 private:
  const json& config_;
  absl::Status status_;
};

void take_common(Keys& keys, ModelSpec& spec, int64_t head_dim) {
  keys.need("hidden_size", spec.dim);
  keys.need("num_hidden_layers", spec.n_layers);
  keys.need("num_attention_heads", spec.n_heads);
  keys.need("vocab_size", spec.vocab_size);
  keys.take("max_position_embeddings", spec.max_seq_len);
  keys.take("rms_norm_eps", spec.norm_eps);
  keys.take("tie_word_embeddings", spec.tied_embeddings);
  keys.take("rope_theta", spec.rope_theta);
  keys.expect("hidden_act", std::string("silu"));
  if (spec.n_heads > 0) spec.head_dim = head_dim > 0 ? head_dim : spec.dim / spec.n_heads;
  spec.n_kv_heads = spec.n_heads;
  keys.take("num_key_value_heads", spec.n_kv_heads);
  keys.take("head_dim", spec.head_dim);
  spec.v_head_dim = spec.head_dim;
}

// "rope_scaling", by its kind; null: none.
std::string scaling_kind(const Keys& keys) {
  const json scaling = keys.at("rope_scaling");
  if (!scaling.is_object()) return "";
  const std::string kind =
      scaling.contains("rope_type") ? scaling.value("rope_type", json()).dump() : scaling.value("type", json()).dump();
  return kind == "\"default\"" ? "" : kind;
}

absl::Status take_llama_scaling(Keys& keys, ModelSpec& spec) {
  spec.rope_scaling.reset();
  const std::string kind = scaling_kind(keys);
  if (kind.empty()) return absl::OkStatus();
  if (kind != "\"llama3\"") keys.refuse("rope_scaling", "none, or one of type llama3");
  const json scaling = keys.at("rope_scaling");
  Keys inner(scaling);
  models::LlamaRopeScaling read;
  inner.take("factor", read.factor);
  inner.take("low_freq_factor", read.low_freq_factor);
  inner.take("high_freq_factor", read.high_freq_factor);
  inner.take("original_max_position_embeddings", read.original_seq_len);
  spec.rope_scaling = read;
  return inner.status();
}

absl::Status take_yarn(Keys& keys, ModelSpec& spec) {
  const std::string kind = scaling_kind(keys);
  if (kind.empty()) {
    spec.yarn.reset();
    return absl::OkStatus();
  }
  if (kind != "\"yarn\"") keys.refuse("rope_scaling", "none, or one of type yarn");
  const json scaling = keys.at("rope_scaling");
  Keys inner(scaling);
  models::YarnScaling& yarn = *spec.yarn;
  inner.take("factor", yarn.factor);
  inner.take("beta_fast", yarn.beta_fast);
  inner.take("beta_slow", yarn.beta_slow);
  inner.take("original_max_position_embeddings", yarn.original_seq_len);
  double mscale = yarn.mscale, all = yarn.mscale;
  inner.take("mscale", mscale);
  inner.take("mscale_all_dim", all);
  if (mscale != all) inner.refuse("mscale", "the same as mscale_all_dim");
  yarn.mscale = all;
  if (spec.name == "gpt_oss") inner.expect("truncate", false);
  return inner.status();
}

absl::Status llama(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.ffn_hidden);
  keys.expect("attention_bias", false);
  keys.expect("mlp_bias", false);
  return take_llama_scaling(keys, spec);
}

absl::Status qwen(Keys& keys, ModelSpec& spec) {
  keys.expect("attention_bias", false);
  keys.expect("use_sliding_window", false);
  if (!scaling_kind(keys).empty()) keys.refuse("rope_scaling", "none");
  if (!spec.moe) {
    keys.need("intermediate_size", spec.ffn_hidden);
    return absl::OkStatus();
  }
  keys.need("moe_intermediate_size", spec.moe->hidden);
  keys.need("num_experts", spec.moe->num_experts);
  keys.need("num_experts_per_tok", spec.moe->top_k);
  spec.moe->route_norm = false;
  keys.take("norm_topk_prob", spec.moe->route_norm);
  keys.expect("decoder_sparse_step", int64_t{1});
  if (const json dense = keys.at("mlp_only_layers"); !dense.is_null() && !dense.empty())
    keys.refuse("mlp_only_layers", "none");
  return absl::OkStatus();
}

absl::Status deepseek(Keys& keys, ModelSpec& spec) {
  models::MoeSpec& moe = *spec.moe;
  spec.n_kv_heads = spec.n_heads;
  keys.expect("attention_bias", false);
  keys.need("intermediate_size", spec.ffn_hidden);
  keys.need("moe_intermediate_size", moe.hidden);
  spec.q_lora_rank = 0;
  keys.take("q_lora_rank", spec.q_lora_rank);
  keys.need("kv_lora_rank", spec.kv_lora_rank);
  keys.need("qk_nope_head_dim", spec.qk_nope_head_dim);
  keys.need("qk_rope_head_dim", spec.qk_rope_head_dim);
  keys.need("v_head_dim", spec.v_head_dim);
  spec.head_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim;
  keys.take("first_k_dense_replace", moe.first_layer);
  keys.expect("moe_layer_freq", int64_t{1});
  keys.need("n_routed_experts", moe.num_experts);
  keys.need("num_experts_per_tok", moe.top_k);
  keys.take("n_shared_experts", moe.num_shared_experts);
  keys.take("n_group", moe.num_expert_groups);
  keys.take("topk_group", moe.num_limited_groups);
  std::string method;
  keys.take("topk_method", method);
  if (moe.num_expert_groups <= 1 || method == "greedy") moe.num_expert_groups = moe.num_limited_groups = 0;
  keys.take("norm_topk_prob", moe.route_norm);
  keys.take("routed_scaling_factor", moe.route_scale);
  keys.take("scoring_func", moe.score_func);
  return take_yarn(keys, spec);
}

absl::Status gpt_oss(Keys& keys, ModelSpec& spec) {
  keys.expect("attention_bias", true);
  keys.need("intermediate_size", spec.moe->hidden);
  keys.need("num_local_experts", spec.moe->num_experts);
  keys.need("num_experts_per_tok", spec.moe->top_k);
  keys.take("swiglu_limit", spec.swiglu_limit);
  keys.need("sliding_window", spec.sliding_window);
  return take_yarn(keys, spec);
}

// A list with 0 where a layer has no positions; empty or none: as the release has it.
void take_unrotated_layers(const json& rotated, ModelSpec& spec) {
  if (!rotated.is_array() || rotated.empty()) return;
  const auto first = std::find(rotated.begin(), rotated.end(), 0);
  if (first == rotated.end()) {
    spec.nope_layer_step = spec.attention_chunk = 0;
    spec.query_temperature_floor = 0;
    return;
  }
  spec.nope_ends_step = first != rotated.begin();
  const auto next = std::find(first + 1, rotated.end(), 0);
  spec.nope_layer_step = spec.nope_ends_step ? first - rotated.begin() + 1 : next - first;
}

// Which layers have positions, experts and chunks is compared with what the numbers give, by whoever reads the weights.
absl::Status llama4(Keys& keys, ModelSpec& spec) {
  models::MoeSpec& moe = *spec.moe;
  keys.expect("attention_bias", false);
  keys.need("intermediate_size", moe.hidden);
  keys.need("intermediate_size_mlp", spec.ffn_hidden);
  keys.need("num_local_experts", moe.num_experts);
  keys.need("num_experts_per_tok", moe.top_k);
  keys.take("interleave_moe_layer_step", moe.layer_step);
  if (moe.layer_step == 1) spec.ffn_hidden = 0;
  keys.take("use_qk_norm", spec.rotated_qk_norm);
  keys.take("attention_chunk_size", spec.attention_chunk);
  bool grows = true;
  keys.take("attn_temperature_tuning", grows);
  keys.take("floor_scale", spec.query_temperature_floor);
  keys.take("attn_scale", spec.query_temperature_scale);
  if (!grows) spec.query_temperature_floor = 0;
  take_unrotated_layers(keys.at("no_rope_layers"), spec);
  return take_llama_scaling(keys, spec);
}

struct Reader {
  const char* name;
  const char* like;  // The flavor that says what the file does not.
  absl::Status (*read)(Keys&, ModelSpec&);
  // Of transformers' class, for files that leave them out; head_dim 0: what the heads leave of the model's width.
  double rope_theta, norm_eps;
  int64_t head_dim = 0;
};

const std::map<std::string, Reader>& readers() {
  static const std::map<std::string, Reader> all = {
      {"llama", {"llama3", "8B", llama, 1e4, 1e-6}},
      {"qwen3", {"qwen3", "8B", qwen, 1e4, 1e-6, 128}},
      {"qwen3_moe", {"qwen3", "30B-A3B", qwen, 1e4, 1e-6}},
      {"deepseek_v2", {"deepseek_v3", "236B", deepseek, 1e4, 1e-6}},
      {"deepseek_v3", {"deepseek_v3", "671B", deepseek, 1e4, 1e-6}},
      {"gpt_oss", {"gpt_oss", "20b", gpt_oss, 1.5e5, 1e-5, 64}},
      {"llama4_text", {"llama4", "17bx16e_released", llama4, 5e5, 1e-5}},
  };
  return all;
}

}  // namespace

absl::StatusOr<ModelSpec> spec_of_hf_config(const json& config) {
  if (!config.is_object()) return absl::InvalidArgumentError("config.json: not a JSON object");
  if (const auto inner = config.find("text_config"); inner != config.end() && inner->is_object())
    return spec_of_hf_config(*inner);
  json flat = config;
  if (const auto rope = config.find("rope_parameters"); rope != config.end() && rope->is_object()) {
    flat["rope_scaling"] = *rope;  // As transformers 5 writes it.
    if (rope->contains("rope_theta")) flat["rope_theta"] = rope->at("rope_theta");
  }
  Keys keys(flat);
  std::string type;
  keys.take("model_type", type);
  const auto reader = readers().find(type);
  if (reader == readers().end()) {
    std::vector<std::string> known;
    for (const auto& [name, any] : readers()) known.push_back(name);
    keys.refuse("model_type", absl::StrJoin(known, ", "));
    return keys.status();
  }
  TITAN_ASSIGN_OR_RETURN(ModelSpec spec, models::find(reader->second.name, reader->second.like));
  spec.flavor = "config.json";
  spec.mask = models::Mask::kCausal;  // How documents are packed is training's matter.
  spec.rope_theta = reader->second.rope_theta;
  spec.norm_eps = reader->second.norm_eps;
  take_common(keys, spec, reader->second.head_dim);
  TITAN_RETURN_IF_ERROR(reader->second.read(keys, spec));
  TITAN_RETURN_IF_ERROR(keys.status());
  return spec;
}

}  // namespace titan::model
