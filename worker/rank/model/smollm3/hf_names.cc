#include "worker/rank/model/families.h"

namespace titan::model::smollm3 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "SmolLM3ForCausalLM", "smollm3");
  config["mlp_bias"] = spec.mlp_bias;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    config["no_rope_layers"].push_back(spec.layer_has_positions(layer) ? 1 : 0);  // 1 means rotation.
  add_optional_windows(spec, config);
  return config;
}

}  // namespace

HfFamily hf() { return {"smollm3", names, config}; }

}  // namespace titan::model::smollm3
