#include "worker/rank/model/families.h"

namespace titan::model::llama3 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = common_config(spec, "LlamaForCausalLM", "llama");
  config["intermediate_size"] = spec.ffn_hidden;
  config["mlp_bias"] = spec.mlp_bias;
  return config;
}

}  // namespace

HfFamily hf() { return {"llama3", names, config}; }

}  // namespace titan::model::llama3
