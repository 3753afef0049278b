#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/layer_lists.h"

// The language model of Llama 4.
namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

constexpr size_t kShownTypes = 80;

constexpr char kLlama4[] = R"({
  "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
  "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": false,
  "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "moe_layers": null,
  "use_qk_norm": true, "attention_chunk_size": 8192, "layer_types": null, "attn_temperature_tuning": true,
  "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layers": null, "no_rope_layer_interval": 4})";

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
  if (matters && there != here) keys.refuse("layer_types", absl::StrCat("only ", here.dump().substr(0, kShownTypes)));
}

// A model in which all layers have positions attends within chunks if its layers without positions would begin after
// the last one (ModelSpec::layer_chunk()).
void settle_chunks_without_nope(Keys& keys, ModelSpec& spec) {
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    if (!spec.layer_has_positions(layer)) return;
  }
  const json types = keys.at("layer_types");
  spec.nope_ends_step = !types.is_array() || std::find(types.begin(), types.end(), "chunked_attention") != types.end();
  spec.nope_layer_step = spec.nope_ends_step ? spec.n_layers + 1 : 0;
}

void take_experts(Keys& keys, ModelSpec& spec) {
  models::MoeSpec& moe = *spec.moe;
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
}

void read_llama4(Keys& keys, ModelSpec& spec) {
  take_experts(keys, spec);
  keys.take("use_qk_norm", spec.rotated_qk_norm);
  take_unrotated_layers(keys, spec);
  settle_chunks_without_nope(keys, spec);
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

}  // namespace

ConfigClasses llama4_classes() {
  return {{"llama4_text",
           {.family = "llama4",
            .like = "17bx16e_released",
            .read = read_llama4,
            .computed = json::parse(kLlama4),
            .only = {{"hidden_act", "silu"}, {"attention_bias", false}},
            .ignored = {{"Titan balances experts without an auxiliary loss; output_router_logits true gives a warning",
                         {"output_router_logits", "router_aux_loss_coef"}},
                        {"the class does not use it", {"router_jitter_noise", "for_llm_compressor"}}}}}};
}

}  // namespace titan::hf_config
