#include "worker/rank/model/families.h"

namespace titan::model::mixtral {
namespace {

HfNames names(const models::ModelSpec& spec) {
  return decoder_names(spec, {.moe = "block_sparse_moe", .expert_gate = "w1", .expert_down = "w2", .expert_up = "w3"});
}

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "MixtralForCausalLM", "mixtral");
  config["num_local_experts"] = spec.moe->num_experts;
  config["num_experts_per_tok"] = spec.moe->top_k;
  config["sliding_window"] = null_if_zero(spec.sliding_window);
  config.erase("attention_bias");
  return config;
}

}  // namespace

HfFamily hf() { return {"mixtral", names, config}; }

}  // namespace titan::model::mixtral
