#include "worker/model/hf_names.h"

namespace titan::model {

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
  if (spec.rope_scaling) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", spec.rope_scaling->factor},
                              {"low_freq_factor", spec.rope_scaling->low_freq_factor},
                              {"high_freq_factor", spec.rope_scaling->high_freq_factor},
                              {"original_max_position_embeddings", spec.rope_scaling->original_seq_len}};
  }
  return config;
}

}  // namespace titan::model
