#include <cmath>

#include "worker/rank/model/families.h"

namespace titan::model::llama4 {
namespace {

// Prefixes of a whole release and of its language model only.
constexpr const char* kPrefixes[] = {"language_model.", ""};

HfNames names(const models::ModelSpec&) {
  HfNames names;
  for (const std::string prefix : kPrefixes) {
    const std::string model = prefix + "model.", layer = model + "layers.{}.feed_forward";
    add_embedding_and_norms(names, model);
    add_attention_projections(names, model, /*bias=*/false);
    add_swiglu(names, "layers.{}.feed_forward", layer);
    add_swiglu(names, "layers.{}.moe.shared_experts", layer + ".shared_expert");
    names.push_back({"layers.{}.moe.router.gate.weight", layer + ".router.weight"});
    names.push_back({"layers.{}.moe.experts.w1", layer + ".experts.gate_up_proj", HfForm::kTransposedFirstHalf});
    names.push_back({"layers.{}.moe.experts.w3", layer + ".experts.gate_up_proj", HfForm::kTransposedSecondHalf});
    names.push_back({"layers.{}.moe.experts.w2", layer + ".experts.down_proj", HfForm::kTransposed});
    names.push_back({"output.weight", prefix + "lm_head.weight"});
  }
  names.push_back({"layers.{}.moe.expert_bias", "", HfForm::kNotStored});
  return names;
}

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = common_config(spec, "Llama4ForCausalLM", "llama4_text");
  const models::MoeSpec& moe = *spec.moe;
  config["intermediate_size"] = moe.hidden;
  config["intermediate_size_mlp"] = spec.ffn_hidden > 0 ? spec.ffn_hidden : moe.hidden;
  config["num_local_experts"] = moe.num_experts;
  config["num_experts_per_tok"] = moe.top_k;
  config["interleave_moe_layer_step"] = moe.layer_step;
  config["use_qk_norm"] = spec.rotated_qk_norm;
  config["attn_temperature_tuning"] = spec.query_temperature_floor > 0;
  if (spec.query_temperature_floor > 0) {
    config["floor_scale"] = std::llround(spec.query_temperature_floor);  // transformers 5 accepts only an integer.
    config["attn_scale"] = spec.query_temperature_scale;
  }
  config["attention_chunk_size"] = spec.attention_chunk > 0 ? spec.attention_chunk : spec.max_seq_len;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    config["no_rope_layers"].push_back(spec.layer_has_positions(layer) ? 1 : 0);  // Despite the name, 1 means rotation.
    config["layer_types"].push_back(spec.layer_chunk(layer) > 0 ? "chunked_attention" : "full_attention");
    if (spec.layer_has_experts(layer)) config["moe_layers"].push_back(layer);
  }
  return config;
}

bool ignores(const models::ModelSpec&, const std::string& key) {
  return key.rfind("vision_model.", 0) == 0 || key.rfind("multi_modal_projector.", 0) == 0;
}

}  // namespace

HfFamily hf() { return {"llama4", names, config, ignores}; }

}  // namespace titan::model::llama4
