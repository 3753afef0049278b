#include "common/plan/hf_config/read.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/flux.h"
#include "common/plan/hf_config/keys.h"
#include "common/plan/hf_config/qwen3_vl.h"
#include "common/plan/hf_config/rope.h"
#include "common/plan/models/flux.h"
#include "common/plan/models/registry.h"

namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

void take_common(Keys& keys, ModelSpec& spec) {
  keys.need("hidden_size", spec.dim);
  keys.need("num_hidden_layers", spec.n_layers);
  keys.need("num_attention_heads", spec.n_heads);
  keys.need("vocab_size", spec.vocab_size);
  keys.need("max_position_embeddings", spec.max_seq_len);
  keys.need("rms_norm_eps", spec.norm_eps);
  spec.tied_embeddings = false;
  keys.take("tie_word_embeddings", spec.tied_embeddings);
  keys.expect("hidden_act", std::string("silu"));
  if (spec.n_heads > 0) spec.head_dim = spec.dim / spec.n_heads;
  spec.n_kv_heads = spec.n_heads;
  keys.take("num_key_value_heads", spec.n_kv_heads);
  keys.take("head_dim", spec.head_dim);
  spec.v_head_dim = spec.head_dim;
}

void llama(Keys& keys, ModelSpec& spec) {
  keys.need("intermediate_size", spec.ffn_hidden);
  keys.expect("attention_bias", false);
  keys.expect("mlp_bias", false);
}

// Checks a per-layer list, if the file has it, against the only supported one.
void expect_list(Keys& keys, const char* key, const json& only) {
  const json there = keys.at(key);
  if (!there.is_null() && there != only) keys.refuse(key, absl::StrCat("only ", only.dump().substr(0, 80)));
}

void qwen(Keys& keys, ModelSpec& spec) {
  keys.expect("attention_bias", false);
  keys.expect("use_sliding_window", false);
  if (!spec.moe) {
    keys.need("intermediate_size", spec.ffn_hidden);
    expect_list(keys, "layer_types", json(std::vector<std::string>(spec.n_layers, "full_attention")));
    return;
  }
  keys.need("moe_intermediate_size", spec.moe->hidden);
  keys.need("num_experts", spec.moe->num_experts);
  keys.need("num_experts_per_tok", spec.moe->top_k);
  keys.take("norm_topk_prob", spec.moe->route_norm);
  keys.expect("decoder_sparse_step", int64_t{1});
  expect_list(keys, "mlp_only_layers", json::array());
}

// DeepSeek V3 has sigmoid scores and ranks groups of experts by the sum of their two best scores. V2 has softmax scores
// and ranks groups, if it has any, by the best score.
void take_groups(Keys& keys, bool second, models::MoeSpec& moe) {
  moe.num_expert_groups = moe.num_limited_groups = 0;
  keys.take("n_group", moe.num_expert_groups);
  keys.take("topk_group", moe.num_limited_groups);
  std::string method = second ? "greedy" : "noaux_tc";
  keys.take("topk_method", method);
  if (second && method != "greedy" && method != "group_limited_greedy")
    keys.refuse("topk_method", "greedy or group_limited_greedy");
  if (!second && method != "noaux_tc") keys.refuse("topk_method", "only noaux_tc");
  if (moe.num_expert_groups <= 1 || method == "greedy") moe.num_expert_groups = moe.num_limited_groups = 0;
}

void deepseek(Keys& keys, ModelSpec& spec) {
  models::MoeSpec& moe = *spec.moe;
  const bool second = moe.score_func == "softmax";
  spec.n_kv_heads = spec.n_heads;
  keys.expect("attention_bias", false);
  keys.expect("mlp_bias", false);
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
  keys.need("n_shared_experts", moe.num_shared_experts);
  take_groups(keys, second, moe);
  keys.expect("scoring_func", moe.score_func);
  keys.take("routed_scaling_factor", moe.route_scale);
  moe.route_norm = false;
  if (second) {
    keys.expect("norm_topk_prob", false);  // transformers' class reads the key and ignores it.
    return;
  }
  keys.take("norm_topk_prob", moe.route_norm);
  bool neighbours = true;
  keys.take("rope_interleave", neighbours);
  spec.rope = neighbours ? models::RopeStyle::kInterleaved : models::RopeStyle::kRotateHalf;
}

void gpt_oss(Keys& keys, ModelSpec& spec) {
  keys.expect("attention_bias", true);
  keys.need("intermediate_size", spec.moe->hidden);
  keys.need("num_local_experts", spec.moe->num_experts);
  keys.need("num_experts_per_tok", spec.moe->top_k);
  keys.need("swiglu_limit", spec.swiglu_limit);
  keys.expect("swiglu_alpha", 1.702);
  keys.need("sliding_window", spec.sliding_window);
  json types = json::array();
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    types.push_back(spec.layer_window(layer) > 0 ? "sliding_attention" : "full_attention");
  expect_list(keys, "layer_types", types);
}

// Reads a list with 0 where a layer has no positions. Without the list, every n-th layer has none.
void take_unrotated_layers(Keys& keys, ModelSpec& spec) {
  const json listed = keys.at("no_rope_layers");
  spec.nope_ends_step = true;
  if (!listed.is_array() || listed.empty()) return keys.need("no_rope_layer_interval", spec.nope_layer_step);
  const auto first = std::find(listed.begin(), listed.end(), 0);
  spec.nope_layer_step = 0;
  if (first == listed.end()) {
    spec.nope_ends_step = false;
  } else {
    spec.nope_ends_step = first != listed.begin();
    const auto next = std::find(first + 1, listed.end(), 0);
    spec.nope_layer_step = spec.nope_ends_step ? first - listed.begin() + 1 : next - first;
  }
  json regular = json::array();
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) regular.push_back(spec.layer_has_positions(layer) ? 1 : 0);
  if (listed != regular) keys.refuse("no_rope_layers", "every n-th layer without positions");
}

// Layers with positions attend within chunks, unless the file says otherwise.
void check_chunks(Keys& keys, const ModelSpec& spec) {
  json here = json::array(), usual = json::array();
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    here.push_back(spec.layer_chunk(layer) > 0 ? "chunked_attention" : "full_attention");
    usual.push_back(spec.layer_has_positions(layer) ? "chunked_attention" : "full_attention");
  }
  int64_t chunk = 0;
  keys.take("attention_chunk_size", chunk);
  const json there = keys.has("layer_types") ? keys.at("layer_types") : usual;
  const bool matters = chunk < spec.max_seq_len;
  if (matters && there != here) keys.refuse("layer_types", absl::StrCat("only ", here.dump().substr(0, 80)));
}

void llama4(Keys& keys, ModelSpec& spec) {
  models::MoeSpec& moe = *spec.moe;
  keys.expect("attention_bias", false);
  keys.need("intermediate_size", moe.hidden);
  keys.need("intermediate_size_mlp", spec.ffn_hidden);
  keys.need("num_local_experts", moe.num_experts);
  keys.need("num_experts_per_tok", moe.top_k);
  keys.need("interleave_moe_layer_step", moe.layer_step);
  if (moe.layer_step == 1) spec.ffn_hidden = 0;
  json experts = json::array();
  for (int64_t layer = 0; moe.layer_step > 0 && layer < spec.n_layers; ++layer) {
    if (spec.layer_has_experts(layer)) experts.push_back(layer);
  }
  expect_list(keys, "moe_layers", experts);
  keys.take("use_qk_norm", spec.rotated_qk_norm);
  take_unrotated_layers(keys, spec);
  spec.attention_chunk = 0;
  if (spec.nope_layer_step > 0) keys.need("attention_chunk_size", spec.attention_chunk);
  check_chunks(keys, spec);
  bool grows = true;
  keys.take("attn_temperature_tuning", grows);
  spec.query_temperature_floor = 0;
  if (grows && spec.nope_layer_step > 0) {
    keys.need("floor_scale", spec.query_temperature_floor);
    keys.take("attn_scale", spec.query_temperature_scale);
  }
}

struct Reader {
  const char* name;
  const char* like;  // Flavor that supplies the settings that config.json does not have.
  void (*read)(Keys&, ModelSpec&);
};

const std::map<std::string, Reader>& readers() {
  static const std::map<std::string, Reader> all = {
      {"llama", {"llama3", "8B", llama}},
      {"qwen3", {"qwen3", "8B", qwen}},
      {"qwen3_moe", {"qwen3", "30B-A3B", qwen}},
      {"deepseek_v2", {"deepseek_v3", "236B", deepseek}},
      {"deepseek_v3", {"deepseek_v3", "671B", deepseek}},
      {"gpt_oss", {"gpt_oss", "20b", gpt_oss}},
      {"llama4_text", {"llama4", "17bx16e_released", llama4}},
  };
  return all;
}

// Returns the class's defaults overridden by the file's keys, under the names that read.cc uses.
json with_defaults(Keys& file, const std::string& model_type) {
  json all = class_defaults(model_type);
  const AttributeAlias alias = alias_of(model_type);
  for (const auto& [key, value] : file.object().items()) {
    if (key != alias.second) all[key] = value;
  }
  if (!file.object().contains(alias.second) || alias.second.empty()) return all;
  const json& second = file.object()[alias.second];
  if (file.has(alias.first) && file.at(alias.first) != second)
    file.refuse(alias.second, absl::StrCat("the same as ", alias.first));
  all[alias.first] = second;
  return all;
}

// Lists settings that transformers applies and Titan does not. Only training would show the difference.
std::vector<std::string> notes_of(const Keys& keys, const ModelSpec& spec) {
  std::vector<std::string> notes;
  if (const json dropout = keys.at("attention_dropout"); dropout.is_number() && dropout != 0)
    notes.push_back(absl::StrCat("attention_dropout ", dropout.dump(), " is not applied: Titan has no dropout"));
  if (keys.at("output_router_logits") == json(true))
    notes.push_back("output_router_logits true: Titan does not add the routers' auxiliary loss");
  if (spec.attention == models::Attention::kLatent && spec.norm_eps != 1e-6) {
    notes.push_back(absl::StrCat("rms_norm_eps ", json(spec.norm_eps).dump(),
                                 ": transformers uses 1e-06 for the latents of attention, Titan uses this value"));
  }
  return notes;
}

}  // namespace

bool reads(const std::string& model_type) { return readers().contains(model_type); }

std::string model_type_of(const ModelSpec& spec) {
  if (spec.name == "llama3") return "llama";
  if (spec.name == "llama4") return "llama4_text";
  if (spec.name == "qwen3_vl") return spec.moe ? "qwen3_vl_moe" : "qwen3_vl";
  if (spec.name == "qwen3") return spec.moe ? "qwen3_moe" : "qwen3";
  if (spec.name == "deepseek_v3") return spec.moe && spec.moe->score_func == "softmax" ? "deepseek_v2" : "deepseek_v3";
  return spec.name;
}

absl::StatusOr<HfModel> read_model(const json& config) {
  if (!config.is_object()) return absl::InvalidArgumentError("config.json: not a JSON object");
  if (config.contains("_class_name")) {  // diffusers has no model_type.
    TITAN_ASSIGN_OR_RETURN(const models::FluxSpec flux, read_flux(config));
    return HfModel{.spec = models::flux_model(flux), .model_type = "flux"};
  }
  if (is_qwen3_vl(config)) return read_whole_qwen3_vl(config);
  if (const auto inner = config.find("text_config"); inner != config.end() && inner->is_object()) {
    json language = *inner;
    if (config.contains("transformers_version") && !language.contains("transformers_version"))
      language["transformers_version"] = config["transformers_version"];
    return read_model(language);
  }
  Keys file(config);
  HfModel model;
  file.take("model_type", model.model_type);
  const auto reader = readers().find(model.model_type);
  if (reader == readers().end()) {
    std::vector<std::string> known;
    for (const auto& [name, any] : readers()) known.push_back(name);
    file.refuse("model_type", absl::StrJoin(known, ", "));
    return file.status();
  }
  TITAN_ASSIGN_OR_RETURN(model.spec, models::find(reader->second.name, reader->second.like));
  model.spec.flavor = "config.json";
  model.spec.mask = models::Mask::kCausal;  // Document packing is a choice of training.
  Keys keys(with_defaults(file, model.model_type));
  take_common(keys, model.spec);
  reader->second.read(keys, model.spec);
  take_rope(file, class_defaults(model.model_type), model.spec);
  TITAN_RETURN_IF_ERROR(keys.status());
  TITAN_RETURN_IF_ERROR(file.status());
  model.notes = notes_of(keys, model.spec);
  return model;
}

}  // namespace titan::hf_config
