#include "worker/rank/model/families.h"

namespace titan::model::phi3 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec, {.fused_qkv = true, .fused_gate_up = true}); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "Phi3ForCausalLM", "phi3");
  config["partial_rotary_factor"] = partial_rotary_factor(spec);
  config["sliding_window"] = null_if_zero(spec.sliding_window);
  config.erase("attention_bias");
  return config;
}

}  // namespace

HfFamily hf() { return {"phi3", names, config}; }

}  // namespace titan::model::phi3
