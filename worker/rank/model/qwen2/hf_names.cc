#include "worker/rank/model/families.h"

namespace titan::model::qwen2 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = decoder_config(spec, "Qwen2ForCausalLM", "qwen2");
  config.erase("attention_bias");  // The class always has it.
  add_optional_windows(spec, config);
  return config;
}

}  // namespace

HfFamily hf() { return {"qwen2", names, config}; }

}  // namespace titan::model::qwen2
