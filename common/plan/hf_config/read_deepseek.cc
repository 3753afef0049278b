#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/layer_lists.h"

// DeepSeek V2 and V3. Kimi K2 has the class and the keys of V3.
namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

// The default of vocab_size differs between the two generations of transformers.
constexpr char kDeepseekV2[] = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false,
  "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "routed_scaling_factor": 1.0,
  "topk_method": "greedy", "n_group": null, "topk_group": null, "num_experts_per_tok": null,
  "moe_intermediate_size": 1407})";

constexpr char kDeepseekV3[] = R"({
  "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128,
  "vocab_size": 129280, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
  "tie_word_embeddings": false, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536,
  "n_routed_experts": 256, "n_shared_experts": 1, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "routed_scaling_factor": 2.5, "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
  "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "rope_interleave": true})";

// DeepSeek V3 has sigmoid scores and ranks groups of experts by the sum of their two best scores. V2 has softmax scores
// and ranks groups, if it has any, by the best score.
void take_groups(Keys& keys, bool second, models::MoeSpec& moe) {
  moe.num_expert_groups = moe.num_limited_groups = 0;
  keys.take("n_group", moe.num_expert_groups);
  keys.take("topk_group", moe.num_limited_groups);
  std::string method = second ? "greedy" : "noaux_tc";
  keys.take("topk_method", method);
  if (second && method != "greedy" && method != "group_limited_greedy")
    keys.refuse("topk_method", "greedy or group_limited_greedy");
  if (!second && method != "noaux_tc") keys.refuse("topk_method", "only noaux_tc");
  if (moe.num_expert_groups <= 1 || method == "greedy") moe.num_expert_groups = moe.num_limited_groups = 0;
}

void take_latent_attention(Keys& keys, ModelSpec& spec) {
  spec.n_kv_heads = spec.n_heads;
  spec.q_lora_rank = 0;
  keys.take("q_lora_rank", spec.q_lora_rank);
  keys.need("kv_lora_rank", spec.kv_lora_rank);
  keys.need("qk_nope_head_dim", spec.qk_nope_head_dim);
  keys.need("qk_rope_head_dim", spec.qk_rope_head_dim);
  keys.need("v_head_dim", spec.v_head_dim);
  spec.head_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim;
}

void read_deepseek(Keys& keys, ModelSpec& spec) {
  models::MoeSpec& moe = *spec.moe;
  const bool second = moe.score_func == "softmax";
  keys.need("intermediate_size", spec.ffn_hidden);
  keys.need("moe_intermediate_size", moe.hidden);
  take_latent_attention(keys, spec);
  keys.take("first_k_dense_replace", moe.first_layer);
  keys.need("n_routed_experts", moe.num_experts);
  keys.need("num_experts_per_tok", moe.top_k);
  keys.need("n_shared_experts", moe.num_shared_experts);
  take_groups(keys, second, moe);
  keys.take("routed_scaling_factor", moe.route_scale);
  moe.route_norm = false;
  if (second) return;
  keys.take("norm_topk_prob", moe.route_norm);
  bool neighbours = true;
  keys.take("rope_interleave", neighbours);
  spec.rope = neighbours ? models::RopeStyle::kInterleaved : models::RopeStyle::kRotateHalf;
}

// Keys with one value in both generations, and those without effect.
ConfigClass deepseek_class(const char* like, const char* computed) {
  return {.family = "deepseek_v3",
          .like = like,
          .read = read_deepseek,
          .computed = json::parse(computed),
          .only = {{"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false}, {"moe_layer_freq", 1}},
          .ignored = {{"layers for further tokens are not trained", {"num_nextn_predict_layers", "num_mtp_layers"}},
                      {"Titan balances experts without an auxiliary loss; output_router_logits true gives a warning",
                       {"aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "output_router_logits"}},
                      {"follows from other keys", {"qk_head_dim", "head_dim", "num_key_value_heads"}},
                      {"names how DeepSeek's own code is run", {"ep_size"}}}};
}

}  // namespace

ConfigClasses deepseek_classes() {
  ConfigClass second = deepseek_class("236B", kDeepseekV2), third = deepseek_class("671B", kDeepseekV3);
  second.only["scoring_func"] = "softmax";
  second.only["norm_topk_prob"] = false;  // transformers' class reads the key and ignores it.
  second.ignored.push_back({"the class does not read it", {"rope_interleave"}});
  second.alias = {"num_experts", "n_routed_experts"};
  third.only["scoring_func"] = "sigmoid";
  third.alias = {"num_local_experts", "n_routed_experts"};
  return {{"deepseek_v2", second}, {"deepseek_v3", third}};
}

}  // namespace titan::hf_config
