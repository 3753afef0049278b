#include "worker/rank/checkpoint/formats/gguf/gguf_metadata.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::checkpoint::gguf {
namespace {

// Adds config.json's numbers under an architecture's prefix.
class Numbers {
 public:
  Numbers(const nlohmann::json& config, const std::string& architecture, Metadata& to)
      : config_(config), prefix_(architecture + "."), to_(to) {}

  bool has(const char* key) const { return config_.contains(key) && !config_[key].is_null(); }
  void count(const char* name, const char* key) const {
    if (has(key)) to_.add_count(prefix_ + name, config_[key].get<int64_t>());
  }
  void real(const char* name, const char* key) const {
    if (has(key)) to_.add_real(prefix_ + name, config_[key].get<double>());
  }

 private:
  const nlohmann::json& config_;
  const std::string prefix_;
  Metadata& to_;
};

void add_sizes(const Numbers& numbers) {
  numbers.count("block_count", "num_hidden_layers");
  numbers.count("context_length", "max_position_embeddings");
  numbers.count("embedding_length", "hidden_size");
  numbers.count("feed_forward_length", "intermediate_size");
  numbers.count("attention.head_count", "num_attention_heads");
  numbers.real("attention.layer_norm_rms_epsilon", "rms_norm_eps");
  numbers.real("rope.freq_base", "rope_theta");
  numbers.count("vocab_size", "vocab_size");
}

void add_grouped_attention(const Numbers& numbers) {
  numbers.count("attention.head_count_kv", "num_key_value_heads");
  numbers.count("attention.key_length", "head_dim");
  numbers.count("attention.value_length", "head_dim");
  numbers.count("rope.dimension_count", "head_dim");
  numbers.count("attention.sliding_window", "sliding_window");
}

// llama.cpp attends to the compressed keys and values, as one head that all queries share.
void add_latent_attention(const nlohmann::json& config, const std::string& prefix, const Numbers& numbers,
                          Metadata& to) {
  const int64_t rank = config["kv_lora_rank"], rotated = config["qk_rope_head_dim"];
  to.add_count(prefix + "attention.head_count_kv", 1);
  to.add_count(prefix + "attention.key_length", rank + rotated);
  to.add_count(prefix + "attention.value_length", rank);
  to.add_count(prefix + "attention.key_length_mla", config["qk_nope_head_dim"].get<int64_t>() + rotated);
  numbers.count("attention.value_length_mla", "v_head_dim");
  numbers.count("attention.kv_lora_rank", "kv_lora_rank");
  // Without the key llama.cpp accepts only numbers of layers that it knows from releases.
  to.add_count(prefix + "attention.q_lora_rank", numbers.has("q_lora_rank") ? config["q_lora_rank"].get<int64_t>() : 0);
  numbers.count("rope.dimension_count", "qk_rope_head_dim");
}

void add_experts(const nlohmann::json& config, const std::string& prefix, const Numbers& numbers, Metadata& to) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) numbers.count("expert_count", key);
  numbers.count("expert_used_count", "num_experts_per_tok");
  // GPT-OSS has one width for all, in "intermediate_size".
  numbers.count("expert_feed_forward_length",
                numbers.has("moe_intermediate_size") ? "moe_intermediate_size" : "intermediate_size");
  numbers.count("expert_shared_count", "n_shared_experts");
  numbers.count("leading_dense_block_count", "first_k_dense_replace");
  numbers.count("expert_group_count", "n_group");
  numbers.count("expert_group_used_count", "topk_group");
  numbers.real("expert_weights_scale", "routed_scaling_factor");
  if (!numbers.has("scoring_func")) return;
  constexpr int64_t kSoftmax = 1, kSigmoid = 2;  // llama.cpp's numbers of the functions.
  if (config.value("norm_topk_prob", false)) to.add_flag(prefix + "expert_weights_norm", true);
  to.add_count(prefix + "expert_gating_func", config["scoring_func"] == "sigmoid" ? kSigmoid : kSoftmax);
}

// llama.cpp scales cosines and sines by 0.1 ln(factor) + 1, and rounds the bounds of YaRN's blend. gpt-oss has exact
// bounds in training.
absl::Status check_yarn(const nlohmann::json& scaling, bool latent, const std::string& architecture) {
  const auto refuse = [](const char* key) {
    return absl::FailedPreconditionError(
        absl::StrCat("--format gguf: rope_scaling.", key, " is not supported: llama.cpp has its own value"));
  };
  if (latent) return absl::OkStatus();
  if (scaling.contains("attention_factor")) return refuse("attention_factor");
  if (architecture != "gpt-oss" && !scaling.value("truncate", true)) return refuse("truncate");
  return absl::OkStatus();
}

absl::Status add_scaling(const nlohmann::json& scaling, bool latent, const std::string& architecture,
                         const std::string& prefix, Metadata& to) {
  const std::string type = scaling.value("rope_type", "");
  if (type == "llama3") return absl::OkStatus();  // frequency_factors().
  if (type != "linear" && type != "yarn") {
    return absl::FailedPreconditionError(
        absl::StrCat("--format gguf: positions that are scaled by \"", type, "\" are not supported"));
  }
  to.add(prefix + "rope.scaling.type", type);
  to.add_real(prefix + "rope.scaling.factor", scaling["factor"]);
  if (type == "linear") return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(check_yarn(scaling, latent, architecture));
  to.add_count(prefix + "rope.scaling.original_context_length", scaling["original_max_position_embeddings"]);
  to.add_real(prefix + "rope.scaling.yarn_beta_fast", scaling["beta_fast"]);
  to.add_real(prefix + "rope.scaling.yarn_beta_slow", scaling["beta_slow"]);
  if (scaling.contains("attention_factor"))
    to.add_real(prefix + "rope.scaling.yarn_attn_factor", scaling["attention_factor"]);
  constexpr double kPerUnit = 0.1;  // The key holds a tenth of mscale for this architecture.
  if (latent && scaling.contains("mscale_all_dim"))
    to.add_real(prefix + "rope.scaling.yarn_log_multiplier", kPerUnit * scaling["mscale_all_dim"].get<double>());
  return absl::OkStatus();
}

}  // namespace

absl::Status add_model(const nlohmann::json& config, const std::string& architecture, Metadata& to) {
  const std::string prefix = architecture + ".";
  const Numbers numbers(config, architecture, to);
  const bool latent = numbers.has("kv_lora_rank");
  add_sizes(numbers);
  if (latent) {
    add_latent_attention(config, prefix, numbers, to);
  } else {
    add_grouped_attention(numbers);
  }
  if (numbers.has("num_experts_per_tok")) add_experts(config, prefix, numbers, to);
  return numbers.has("rope_scaling") ? add_scaling(config["rope_scaling"], latent, architecture, prefix, to)
                                     : absl::OkStatus();
}

std::vector<float> frequency_factors(const nlohmann::json& config) {
  const nlohmann::json scaling = config.value("rope_scaling", nlohmann::json());
  if (!scaling.is_object() || scaling.value("rope_type", "") != "llama3") return {};
  const double factor = scaling["factor"], low = scaling["low_freq_factor"], high = scaling["high_freq_factor"],
               original = scaling["original_max_position_embeddings"], theta = config["rope_theta"];
  const int64_t head_dim = config["head_dim"];
  std::vector<float> factors;
  for (int64_t channel = 0; channel < head_dim; channel += 2) {
    const double frequency = std::pow(theta, -static_cast<double>(channel) / static_cast<double>(head_dim));
    const double turns = original * frequency / (2 * std::numbers::pi);  // Over the original length.
    const double share = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - share) / factor + share)));
  }
  return factors;
}

}  // namespace titan::checkpoint::gguf
