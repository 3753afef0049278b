#include "worker/rank/model/hf_names.h"

namespace titan::model {
namespace {

nlohmann::json scaling_of(const models::LlamaRopeScaling& scaling) {
  if (scaling.original_seq_len == 0) return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_seq_len}};
}

// GPT-OSS's form scales cosines and sines, which is what transformers does unless told otherwise; DeepSeek's does not.
nlohmann::json scaling_of(const models::YarnScaling& yarn, bool latent) {
  nlohmann::json table = {{"rope_type", "yarn"},
                          {"factor", yarn.factor},
                          {"beta_fast", yarn.beta_fast},
                          {"beta_slow", yarn.beta_slow},
                          {"original_max_position_embeddings", yarn.original_seq_len}};
  if (yarn.scales_cos_sin) {
    table["truncate"] = false;
  } else if (latent && yarn.mscale != 0) {
    table["mscale"] = table["mscale_all_dim"] = yarn.mscale;
  } else {
    table["attention_factor"] = 1.0;
  }
  return table;
}

}  // namespace

void add_embedding_and_norms(HfNames& names, const std::string& prefix) {
  names.push_back({"tok_embeddings.weight", prefix + "embed_tokens.weight"});
  names.push_back({"norm.weight", prefix + "norm.weight"});
  names.push_back({"layers.{}.attention_norm.weight", prefix + "layers.{}.input_layernorm.weight"});
  names.push_back({"layers.{}.ffn_norm.weight", prefix + "layers.{}.post_attention_layernorm.weight"});
}

void add_attention_projections(HfNames& names, const std::string& prefix, bool bias) {
  for (const char* letter : {"q", "k", "v", "o"}) {
    const std::string fqn = std::string("layers.{}.attention.w") + letter;
    const std::string hf = prefix + "layers.{}.self_attn." + letter + "_proj";
    names.push_back({fqn + ".weight", hf + ".weight"});
    if (bias) names.push_back({fqn + ".bias", hf + ".bias"});
  }
}

void add_swiglu(HfNames& names, const std::string& fqn, const std::string& hf) {
  names.push_back({fqn + ".w1.weight", hf + ".gate_proj.weight"});
  names.push_back({fqn + ".w2.weight", hf + ".down_proj.weight"});
  names.push_back({fqn + ".w3.weight", hf + ".up_proj.weight"});
}

void add_experts(HfNames& names, const std::string& fqn, const std::string& hf) {
  names.push_back({fqn + ".w1", hf + ".{}.gate_proj.weight", HfForm::kEachExpert});
  names.push_back({fqn + ".w2", hf + ".{}.down_proj.weight", HfForm::kEachExpert});
  names.push_back({fqn + ".w3", hf + ".{}.up_proj.weight", HfForm::kEachExpert});
}

nlohmann::json common_config(const models::ModelSpec& spec, const std::string& architecture,
                             const std::string& model_type) {
  nlohmann::json config = {{"architectures", {architecture}},
                           {"model_type", model_type},
                           {"hidden_act", "silu"},
                           {"hidden_size", spec.dim},
                           {"num_hidden_layers", spec.n_layers},
                           {"num_attention_heads", spec.n_heads},
                           {"num_key_value_heads", spec.n_kv_heads},
                           {"head_dim", spec.head_dim},
                           {"vocab_size", spec.vocab_size},
                           {"max_position_embeddings", spec.max_seq_len},
                           {"rms_norm_eps", spec.norm_eps},
                           {"rope_theta", spec.rope_theta},
                           {"attention_bias", spec.attention_bias},
                           {"tie_word_embeddings", spec.tied_embeddings}};
  if (spec.rope_scaling) config["rope_scaling"] = scaling_of(*spec.rope_scaling);
  if (spec.yarn) config["rope_scaling"] = scaling_of(*spec.yarn, spec.attention == models::Attention::kLatent);
  return config;
}

}  // namespace titan::model
