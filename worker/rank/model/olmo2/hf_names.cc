#include "worker/rank/model/families.h"

namespace titan::model::olmo2 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = common_config(spec, "Olmo2ForCausalLM", "olmo2");
  config["intermediate_size"] = spec.ffn_hidden;
  return config;
}

}  // namespace

HfFamily hf() { return {"olmo2", names, config}; }

}  // namespace titan::model::olmo2
