#include "worker/rank/model/families.h"

namespace titan::model::qwen3 {
namespace {

HfNames names(const models::ModelSpec& spec) {
  HfNames names;
  add_embedding_and_norms(names, "model.");
  add_attention_projections(names, "model.", /*bias=*/false);
  for (const char* norm : {"q_norm", "k_norm"}) {
    names.push_back({std::string("layers.{}.attention.") + norm + ".weight",
                     std::string("model.layers.{}.self_attn.") + norm + ".weight"});
  }
  if (spec.moe) {
    add_experts(names, "layers.{}.moe.experts", "model.layers.{}.mlp.experts");
    names.push_back({"layers.{}.moe.router.gate.weight", "model.layers.{}.mlp.gate.weight"});
    names.push_back({"layers.{}.moe.expert_bias", "", HfForm::kNotStored});
  } else {
    add_swiglu(names, "layers.{}.feed_forward", "model.layers.{}.mlp");
  }
  if (!spec.tied_embeddings) names.push_back({"output.weight", "lm_head.weight"});
  return names;
}

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = spec.moe ? common_config(spec, "Qwen3MoeForCausalLM", "qwen3_moe")
                                   : common_config(spec, "Qwen3ForCausalLM", "qwen3");
  config["use_sliding_window"] = false;
  if (!spec.moe) {
    config["intermediate_size"] = spec.ffn_hidden;
    return config;
  }
  config["intermediate_size"] = spec.moe->hidden;  // For dense layers, which these models do not have.
  config["moe_intermediate_size"] = spec.moe->hidden;
  config["num_experts"] = spec.moe->num_experts;
  config["num_experts_per_tok"] = spec.moe->top_k;
  config["norm_topk_prob"] = spec.moe->route_norm;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = nlohmann::json::array();
  return config;
}

}  // namespace

HfFamily hf() { return {"qwen3", names, config}; }

}  // namespace titan::model::qwen3
