#include <cctype>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/llama/llama.h"

namespace titan::model::llama {
namespace {

enum class Rows { kAsIs, kQueryHeads, kKeyHeads };

struct Name {
  const char* fqn;
  const char* hf;
  Rows rows = Rows::kAsIs;
};

constexpr Name kModelNames[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

// Behind "layers.N." and "model.layers.N.".
constexpr Name kLayerNames[] = {
    {"attention.wq.weight", "self_attn.q_proj.weight", Rows::kQueryHeads},
    {"attention.wk.weight", "self_attn.k_proj.weight", Rows::kKeyHeads},
    {"attention.wv.weight", "self_attn.v_proj.weight"},
    {"attention.wo.weight", "self_attn.o_proj.weight"},
    {"feed_forward.w1.weight", "mlp.gate_proj.weight"},
    {"feed_forward.w2.weight", "mlp.down_proj.weight"},
    {"feed_forward.w3.weight", "mlp.up_proj.weight"},
    {"attention_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
};

// "layers.12.rest" -> {"12", "rest"}; empty index when `name` is not of a layer that the model has.
struct LayerName {
  std::string index, rest;
};
LayerName split_layer(std::string_view name, std::string_view prefix, int64_t n_layers) {
  if (name.substr(0, prefix.size()) != prefix) return {};
  name.remove_prefix(prefix.size());
  size_t digits = 0;
  while (digits < name.size() && std::isdigit(static_cast<unsigned char>(name[digits]))) ++digits;
  if (digits == 0 || digits > 9 || digits == name.size() || name[digits] != '.') return {};
  const std::string index(name.substr(0, digits));
  if (std::stoll(index) >= n_layers) return {};
  return {index, std::string(name.substr(digits + 1))};
}

}  // namespace

absl::StatusOr<HfTensor> hf_tensor(const models::ModelSpec& spec, const std::string& fqn) {
  for (const Name& name : kModelNames) {
    if (fqn == name.fqn) return HfTensor{name.hf};
  }
  const LayerName layer = split_layer(fqn, "layers.", spec.n_layers);
  for (const Name& name : kLayerNames) {
    if (layer.index.empty() || layer.rest != name.fqn) continue;
    const int64_t heads = name.rows == Rows::kQueryHeads ? spec.n_heads
                          : name.rows == Rows::kKeyHeads ? spec.n_kv_heads
                                                         : 0;
    return HfTensor{absl::StrCat("model.layers.", layer.index, ".", name.hf), heads};
  }
  return absl::NotFoundError(absl::StrCat(spec.name, " ", spec.flavor, " has no parameter \"", fqn, "\""));
}

absl::StatusOr<std::optional<std::string>> fqn_of_hf_key(const models::ModelSpec& spec, const std::string& key) {
  for (const Name& name : kModelNames) {
    if (key == name.hf) return name.fqn;
  }
  const LayerName layer = split_layer(key, "model.layers.", spec.n_layers);
  for (const Name& name : kLayerNames) {
    if (!layer.index.empty() && layer.rest == name.hf) return absl::StrCat("layers.", layer.index, ".", name.fqn);
  }
  if (!layer.index.empty() && layer.rest == "self_attn.rotary_emb.inv_freq") return std::nullopt;
  return absl::NotFoundError(
      absl::StrCat("\"", key, "\" is no Hugging Face name of a ", spec.name, " ", spec.flavor, " weight"));
}

nlohmann::json hf_config(const models::ModelSpec& spec) {
  nlohmann::json config{{"architectures", {"LlamaForCausalLM"}},
                        {"model_type", "llama"},
                        {"hidden_act", "silu"},
                        {"hidden_size", spec.dim},
                        {"intermediate_size", spec.ffn_hidden},
                        {"num_hidden_layers", spec.n_layers},
                        {"num_attention_heads", spec.n_heads},
                        {"num_key_value_heads", spec.n_kv_heads},
                        {"head_dim", spec.head_dim},
                        {"vocab_size", spec.vocab_size},
                        {"max_position_embeddings", spec.max_seq_len},
                        {"rms_norm_eps", spec.norm_eps},
                        {"rope_theta", spec.rope_theta},
                        {"attention_bias", false},
                        {"mlp_bias", false},
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

}  // namespace titan::model::llama
