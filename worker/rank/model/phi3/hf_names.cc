#include "worker/rank/model/families.h"

namespace titan::model::phi3 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec, {.fused_qkv = true, .fused_gate_up = true}); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = common_config(spec, "Phi3ForCausalLM", "phi3");
  config["intermediate_size"] = spec.ffn_hidden;
  config["partial_rotary_factor"] = partial_rotary_factor(spec);
  config["original_max_position_embeddings"] = spec.max_seq_len;
  config["sliding_window"] = null_if_zero(spec.sliding_window);
  config.erase("attention_bias");
  return config;
}

}  // namespace

HfFamily hf() { return {"phi3", names, config}; }

}  // namespace titan::model::phi3
