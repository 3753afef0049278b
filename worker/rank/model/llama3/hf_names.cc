#include "worker/rank/model/families.h"

namespace titan::model::llama3 {
namespace {

HfNames names(const models::ModelSpec& spec) {
  HfNames names;
  add_embedding_and_norms(names, "model.");
  add_attention_projections(names, "model.", /*bias=*/false);
  for (HfName& name : names) {
    if (name.fqn == "layers.{}.attention.wq.weight") name.form = HfForm::kQueryHeads;
    if (name.fqn == "layers.{}.attention.wk.weight") name.form = HfForm::kKeyHeads;
  }
  add_swiglu(names, "layers.{}.feed_forward", "model.layers.{}.mlp");
  if (!spec.tied_embeddings) names.push_back({"output.weight", "lm_head.weight"});
  return names;
}

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = common_config(spec, "LlamaForCausalLM", "llama");
  config["intermediate_size"] = spec.ffn_hidden;
  config["mlp_bias"] = false;
  return config;
}

}  // namespace

HfFamily hf() { return {"llama3", names, config}; }

}  // namespace titan::model::llama3
