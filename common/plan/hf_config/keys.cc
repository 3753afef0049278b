#include "common/plan/hf_config/keys.h"

#include <cmath>
#include <map>

namespace titan::hf_config {
namespace {
constexpr int64_t kLargest = int64_t{1} << 40;
constexpr size_t kMaxShownValueLength = 80;
}  // namespace

void Keys::take(const std::string& key, int64_t& into) {
  if (!has(key)) return;
  const nlohmann::json& there = object_.at(key);
  if (there.is_number_integer() && there >= 0 && there < kLargest) {
    into = there.get<int64_t>();
  } else if (there.is_number_float() && there >= 0 && there < kLargest &&
             std::floor(there.get<double>()) == there.get<double>()) {
    into = static_cast<int64_t>(there.get<double>());  // Some tools write 4096.0.
  } else {
    refuse(key, "an integer");
  }
}

void Keys::take(const std::string& key, double& into) {
  if (!has(key)) return;
  if (!object_.at(key).is_number()) return refuse(key, "a number");
  into = object_.at(key).get<double>();
}

void Keys::take(const std::string& key, bool& into) {
  if (!has(key)) return;
  const nlohmann::json& there = object_.at(key);
  if (there.is_boolean()) {
    into = there.get<bool>();
  } else if (there.is_number()) {
    into = there != 0;
  } else {
    refuse(key, "true or false");
  }
}

void Keys::take(const std::string& key, std::string& into) {
  if (!has(key)) return;
  if (!object_.at(key).is_string()) return refuse(key, "a text");
  into = object_.at(key).get<std::string>();
}

void Keys::need(const std::string& key, int64_t& into) {
  into = 0;
  take(key, into);
  if (into <= 0) refuse(key, "an integer above 0");
}

void Keys::need(const std::string& key, double& into) {
  into = 0;
  take(key, into);
  if (!(into > 0) || !std::isfinite(into)) refuse(key, "a number above 0");
}

void Keys::refuse(const std::string& key, const std::string& expected) {
  if (!status_.ok()) return;
  const bool is_there = object_.contains(key);
  const std::string there = is_there ? object_.at(key).dump() : "missing";
  status_ =
      absl::InvalidArgumentError(absl::StrCat(file_, ": ", prefix_, key, " is ", there.substr(0, kMaxShownValueLength),
                                              "; ", expected, is_there ? " is supported" : " is required"));
}

namespace {

using nlohmann::json;

constexpr char kLlama[] = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4})";

constexpr char kQwen3[] = R"({
  "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 32, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-6, "rope_theta": 1e4})";

constexpr char kQwen3Moe[] = R"({
  "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_attention_heads": 32,
  "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
  "rope_theta": 1e4, "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts": 128,
  "num_experts_per_tok": 8, "norm_topk_prob": false})";

constexpr char kDeepseekV2[] = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "first_k_dense_replace": 0,
  "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "routed_scaling_factor": 1.0, "topk_method": "greedy",
  "norm_topk_prob": false, "moe_intermediate_size": 1407})";

constexpr char kDeepseekV3[] = R"({
  "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128,
  "vocab_size": 129280, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
  "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts": 256, "n_shared_experts": 1,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "routed_scaling_factor": 2.5, "n_group": 8,
  "topk_group": 4, "norm_topk_prob": true, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
  "rope_interleave": true})";

constexpr char kGptOss[] = R"({
  "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
  "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-5, "rope_theta": 1.5e5, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
  "swiglu_limit": 7.0, "swiglu_alpha": 1.702,
  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                   "original_max_position_embeddings": 4096}})";

constexpr char kLlama4[] = R"({
  "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
  "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "num_local_experts": 16,
  "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "use_qk_norm": true, "attention_chunk_size": 8192,
  "attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layer_interval": 4})";

}  // namespace

json class_defaults(const std::string& model_type) {
  static const std::map<std::string, const char*> all = {{"llama", kLlama},
                                                         {"qwen3", kQwen3},
                                                         {"qwen3_moe", kQwen3Moe},
                                                         {"deepseek_v2", kDeepseekV2},
                                                         {"deepseek_v3", kDeepseekV3},
                                                         {"gpt_oss", kGptOss},
                                                         {"llama4_text", kLlama4}};
  const auto found = all.find(model_type);
  return found == all.end() ? json() : json::parse(found->second);
}

AttributeAlias alias_of(const std::string& model_type) {
  if (model_type == "qwen3_moe") return {"num_local_experts", "num_experts"};
  if (model_type == "gpt_oss") return {"num_experts", "num_local_experts"};
  if (model_type == "deepseek_v2") return {"num_experts", "n_routed_experts"};
  if (model_type == "deepseek_v3") return {"num_local_experts", "n_routed_experts"};
  return {};
}

}  // namespace titan::hf_config
