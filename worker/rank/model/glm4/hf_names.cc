#include "worker/rank/model/families.h"

namespace titan::model::glm4 {
namespace {

HfNames names(const models::ModelSpec& spec) {
  return decoder_names(spec, {.attention_post_norm = "post_self_attn_layernorm",
                              .ffn_norm = "post_attention_layernorm",
                              .ffn_post_norm = "post_mlp_layernorm",
                              .fused_gate_up = true,
                              .pairs_neighbours = true});
}

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "Glm4ForCausalLM", "glm4");
  config["partial_rotary_factor"] = partial_rotary_factor(spec);
  return config;
}

}  // namespace

HfFamily hf() { return {"glm4", names, config}; }

}  // namespace titan::model::glm4
