#include "worker/rank/model/families.h"

namespace titan::model::qwen3 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = spec.moe ? common_config(spec, "Qwen3MoeForCausalLM", "qwen3_moe")
                                   : common_config(spec, "Qwen3ForCausalLM", "qwen3");
  if (!spec.moe) {
    config["intermediate_size"] = spec.ffn_hidden;
    add_optional_windows(spec, config);
    return config;
  }
  config["intermediate_size"] = spec.moe->hidden;  // For dense layers, which these models do not have.
  config["moe_intermediate_size"] = spec.moe->hidden;
  config["num_experts"] = spec.moe->num_experts;
  config["num_experts_per_tok"] = spec.moe->top_k;
  config["norm_topk_prob"] = spec.moe->route_norm;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = nlohmann::json::array();
  config["use_sliding_window"] = spec.sliding_window > 0;
  if (spec.sliding_window > 0) config["sliding_window"] = spec.sliding_window;  // In all layers.
  return config;
}

}  // namespace

HfFamily hf() { return {"qwen3", names, config}; }

}  // namespace titan::model::qwen3
