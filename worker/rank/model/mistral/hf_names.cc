#include "worker/rank/model/families.h"

namespace titan::model::mistral {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "MistralForCausalLM", "mistral");
  config["sliding_window"] = null_if_zero(spec.sliding_window);
  config.erase("attention_bias");
  return config;
}

}  // namespace

HfFamily hf() { return {"mistral", names, config}; }

}  // namespace titan::model::mistral
