#include "worker/rank/model/families.h"

namespace titan::model::granite {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "GraniteForCausalLM", "granite");
  config["mlp_bias"] = spec.mlp_bias;
  config["embedding_multiplier"] = spec.embedding_scale;
  config["residual_multiplier"] = spec.residual_scale;
  config["logits_scaling"] = spec.logit_divisor;
  config["attention_multiplier"] = spec.attention_scale;
  return config;
}

}  // namespace

HfFamily hf() { return {"granite", names, config}; }

}  // namespace titan::model::granite
