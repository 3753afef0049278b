#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/rank/model/families.h"

namespace titan::model::deepseek_v3 {
namespace {

// DeepSeek V2 models are flavors of this family. Their routers have softmax scores.
bool second_generation(const models::ModelSpec& spec) { return spec.moe->score_func == "softmax"; }

HfNames names(const models::ModelSpec& spec) {
  HfNames names;
  add_embedding_and_norms(names, "model.");
  const auto attention = [&](const char* fqn, const char* hf) {
    names.push_back({absl::StrCat("layers.{}.attention.", fqn, ".weight"),
                     absl::StrCat("model.layers.{}.self_attn.", hf, ".weight")});
  };
  if (spec.q_lora_rank == 0) {
    attention("wq", "q_proj");
  } else {
    attention("wq_a", "q_a_proj");
    attention("q_norm", "q_a_layernorm");
    attention("wq_b", "q_b_proj");
  }
  attention("wkv_a", "kv_a_proj_with_mqa");
  attention("kv_norm", "kv_a_layernorm");
  attention("wkv_b", "kv_b_proj");
  attention("wo", "o_proj");
  add_swiglu(names, "layers.{}.feed_forward", "model.layers.{}.mlp");
  add_swiglu(names, "layers.{}.moe.shared_experts", "model.layers.{}.mlp.shared_experts");
  add_experts(names, "layers.{}.moe.experts", "model.layers.{}.mlp.experts");
  // transformers' classes compute the scores in float32, so weights or a bias in bfloat16 could choose other experts.
  names.push_back({.fqn = "layers.{}.moe.router.gate.weight",
                   .hf = "model.layers.{}.mlp.gate.weight",
                   .float32 = checkpoint::KeepFloat32::kAlways});
  // torchtitan writes the bias for both generations, but DeepseekV2's class ignores it.
  names.push_back({.fqn = "layers.{}.moe.expert_bias",
                   .hf = "model.layers.{}.mlp.gate.e_score_correction_bias",
                   .optional = second_generation(spec),
                   .read_only = second_generation(spec),
                   .float32 = checkpoint::KeepFloat32::kAlways});
  names.push_back({"output.weight", "lm_head.weight"});
  return names;
}

nlohmann::json config(const models::ModelSpec& spec, int64_t seq_len) {
  const models::MoeSpec& moe = *spec.moe;
  const bool second = second_generation(spec);
  nlohmann::json config = second ? common_config(spec, "DeepseekV2ForCausalLM", "deepseek_v2")
                                 : common_config(spec, "DeepseekV3ForCausalLM", "deepseek_v3");
  config.erase("head_dim");  // In transformers it is the size of the rotated part, which follows from qk_rope_head_dim.
  config["intermediate_size"] = spec.ffn_hidden;
  config["moe_intermediate_size"] = moe.hidden;
  config["q_lora_rank"] = spec.q_lora_rank > 0 ? nlohmann::json(spec.q_lora_rank) : nlohmann::json();
  config["kv_lora_rank"] = spec.kv_lora_rank;
  config["qk_nope_head_dim"] = spec.qk_nope_head_dim;
  config["qk_rope_head_dim"] = spec.qk_rope_head_dim;
  config["v_head_dim"] = spec.v_head_dim;
  config["first_k_dense_replace"] = moe.first_layer;
  config["n_routed_experts"] = moe.num_experts;
  config["n_shared_experts"] = moe.num_shared_experts;
  config["num_experts_per_tok"] = moe.top_k;
  config["n_group"] = std::max<int64_t>(moe.num_expert_groups, 1);
  config["topk_group"] = std::max<int64_t>(moe.num_limited_groups, 1);
  config["norm_topk_prob"] = moe.route_norm;
  config["routed_scaling_factor"] = moe.route_scale;
  config["scoring_func"] = moe.score_func;
  config["topk_method"] = !second ? "noaux_tc" : moe.num_expert_groups > 0 ? "group_limited_greedy" : "greedy";
  if (spec.rope == models::RopeStyle::kRotateHalf) config["rope_interleave"] = false;
  if (!spec.yarn) return config;
  // torchtitan's flavors stretch positions only if the sequences exceed the original length. transformers does so
  // whenever rope_scaling is set.
  if (spec.yarn->only_beyond_original && seq_len <= spec.yarn->original_seq_len) {
    config.erase("rope_scaling");
    return config;
  }
  config["rope_scaling"]["type"] = "yarn";  // The key that DeepSeek's own code reads.
  config["max_position_embeddings"] = static_cast<int64_t>(spec.yarn->factor) * spec.yarn->original_seq_len;
  return config;
}

// The layer after the last one predicts further tokens (multi-token prediction). Training does not have it.
bool ignores(const models::ModelSpec& spec, const std::string& key) {
  return key.rfind(absl::StrCat("model.layers.", spec.n_layers, "."), 0) == 0;
}

}  // namespace

HfFamily hf() { return {"deepseek_v3", names, config, ignores}; }

}  // namespace titan::model::deepseek_v3
