#include <algorithm>

#include "absl/strings/match.h"
#include "worker/rank/model/families.h"

namespace titan::model::gpt_oss {
namespace {

HfNames names(const models::ModelSpec&) {
  HfNames names;
  add_embedding_and_norms(names, "model.");
  for (HfName& name : names) {
    if (absl::EndsWith(name.hf, "norm.weight")) name.float32 = checkpoint::KeepFloat32::kNotFloat16;
  }
  add_attention_projections(names, "model.", /*bias=*/true);
  names.push_back({"layers.{}.attention.sinks", "model.layers.{}.self_attn.sinks"});
  const std::string fqn = "layers.{}.moe.experts.", hf = "model.layers.{}.mlp.experts.";
  // Gate and up rows alternate on both sides. The quantized release has Titan's shapes. torchtitan's exports have the
  // same shapes and names but are not quantized.
  names.push_back({fqn + "mlp1_weight", hf + "gate_up_proj", HfForm::kTransposed});
  names.push_back({fqn + "mlp1_weight", hf + "gate_up_proj_blocks"});
  names.push_back({fqn + "mlp1_bias", hf + "gate_up_proj_bias"});
  names.push_back({fqn + "mlp2_weight", hf + "down_proj", HfForm::kTransposed});
  names.push_back({fqn + "mlp2_weight", hf + "down_proj_blocks"});
  names.push_back({fqn + "mlp2_bias", hf + "down_proj_bias"});
  names.push_back({"layers.{}.moe.router.gate.weight", "model.layers.{}.mlp.router.weight"});
  names.push_back({"layers.{}.moe.router.gate.bias", "model.layers.{}.mlp.router.bias"});
  names.push_back({"layers.{}.moe.expert_bias", "", HfForm::kNotStored});
  names.push_back({"output.weight", "lm_head.weight"});
  return names;
}

nlohmann::json config(const models::ModelSpec& spec, int64_t) {
  nlohmann::json config = common_config(spec, "GptOssForCausalLM", "gpt_oss");
  config["intermediate_size"] = spec.moe->hidden;
  config["num_local_experts"] = spec.moe->num_experts;
  config["num_experts_per_tok"] = spec.moe->top_k;
  config["swiglu_limit"] = spec.swiglu_limit;
  config["sliding_window"] =
      std::max<int64_t>(spec.sliding_window, 1);  // The class needs a number even without windows.
  config["layer_types"] = layer_types(spec);
  return config;
}

}  // namespace

HfFamily hf() { return {"gpt_oss", names, config}; }

}  // namespace titan::model::gpt_oss
