#include <algorithm>
#include <utility>

#include "worker/rank/model/families.h"

namespace titan::model::gemma3 {
namespace {

// Prefixes of the language model alone, and of whole releases as they are and as transformers saves them.
constexpr const char* kPrefixes[] = {"model.", "language_model.model.", "model.language_model."};

HfNames names(const models::ModelSpec& spec) {
  HfNames names;
  for (const char* prefix : kPrefixes) {
    for (HfName& name : decoder_names(spec, {.prefix = prefix})) names.push_back(std::move(name));
  }
  return names;
}

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "Gemma3ForCausalLM", "gemma3_text");
  config.erase("hidden_act");
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["query_pre_attn_scalar"] = query_pre_attn_scalar(spec);
  config["sliding_window"] =
      std::max<int64_t>(spec.sliding_window, 1);  // The class needs a number even without windows.
  config["layer_types"] = layer_types(spec);
  config["final_logit_softcapping"] = null_if_zero(spec.logit_softcap);
  constexpr double kClassTheta = 1e4;  // Without windows it has no effect, but the class does not accept 0.
  config["rope_local_base_freq"] = spec.window_rope_theta > 0 ? spec.window_rope_theta : kClassTheta;
  return config;
}

bool ignores(const models::ModelSpec&, const std::string& key) {
  return key.find("vision_tower.") != std::string::npos || key.find("multi_modal_projector.") != std::string::npos;
}

}  // namespace

HfFamily hf() { return {"gemma3", names, config, ignores}; }

}  // namespace titan::model::gemma3
