#include "worker/rank/model/families.h"

namespace titan::model::olmo2 {
namespace {

HfNames names(const models::ModelSpec& spec) { return decoder_names(spec); }

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  return decoder_config(spec, "Olmo2ForCausalLM", "olmo2");
}

}  // namespace

HfFamily hf() { return {"olmo2", names, config}; }

}  // namespace titan::model::olmo2
