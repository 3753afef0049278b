#include "worker/rank/model/families.h"

namespace titan::model::olmo2 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "Olmo2ForCausalLM", "olmo2");
  // transformers 4's class accepts only this scaling, in the older form.
  if (const auto scaling = config.find("rope_scaling"); scaling != config.end() && (*scaling)["rope_type"] == "linear")
    *scaling = {{"type", "linear"}, {"factor", (*scaling)["factor"]}};
  return config;
}

}  // namespace

HfFamily hf() { return {"olmo2", names, config}; }

}  // namespace titan::model::olmo2
