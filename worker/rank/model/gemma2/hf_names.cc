#include <algorithm>

#include "worker/rank/model/families.h"

namespace titan::model::gemma2 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "Gemma2ForCausalLM", "gemma2");
  config.erase("hidden_act");
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["query_pre_attn_scalar"] = query_pre_attn_scalar(spec);
  config["sliding_window"] =
      std::max<int64_t>(spec.sliding_window, 1);  // The class needs a number even without windows.
  config["layer_types"] = layer_types(spec);
  config["final_logit_softcapping"] = null_if_zero(spec.logit_softcap);
  config["attn_logit_softcapping"] = null_if_zero(spec.attention_softcap);
  return config;
}

}  // namespace

HfFamily hf() { return {"gemma2", names, config}; }

}  // namespace titan::model::gemma2
