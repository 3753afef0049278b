#include "worker/rank/model/vision/hf_names.h"

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace titan::model {

HfNames vision_hf_names(const models::VisionSpec& spec) {
  HfNames names;
  const auto add = [&](const std::string& fqn, const std::string& hf, bool optional = false) {
    for (const char* kind : {".weight", ".bias"})
      names.push_back({.fqn = fqn + kind, .hf = hf + kind, .optional = optional});
  };
  add("encoder.embeddings.patch_embedding", "vision_model.embeddings.patch_embedding");
  names.push_back(
      {"encoder.embeddings.position_embedding.weight", "vision_model.embeddings.position_embedding.weight"});
  for (const char* part : {"layer_norm1", "layer_norm2", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                           "self_attn.out_proj", "mlp.fc1", "mlp.fc2"}) {
    add(absl::StrCat("encoder.layers.{}.", part), absl::StrCat("vision_model.encoder.layers.{}.", part));
  }
  add("encoder.post_layernorm", "vision_model.post_layernorm");
  if (spec.out_dim > 0) {
    for (const char* projection : {"projector.w1", "projector.w2"}) add(projection, projection, /*optional=*/true);
  }
  return names;
}

nlohmann::json vision_hf_config(const models::VisionSpec& spec) {
  return {{"architectures", {"Siglip2VisionModel"}},
          {"model_type", "siglip2_vision_model"},
          {"hidden_size", spec.dim},
          {"intermediate_size", spec.ffn_hidden},
          {"num_hidden_layers", spec.n_layers},
          {"num_attention_heads", spec.n_heads},
          {"num_channels", spec.channels},
          {"num_patches", spec.position_side * spec.position_side},
          {"patch_size", spec.patch_size},
          {"layer_norm_eps", spec.norm_eps},
          {"hidden_act", "gelu_pytorch_tanh"},
          {"attention_dropout", 0.0},
          {"vision_use_head", false}};
}

namespace {

std::string in_layer(const std::string& name, int64_t layer) {
  return absl::StrReplaceAll(name, {{"{}", absl::StrCat(layer)}});
}

class VisionMapper final : public checkpoint::HfMapper {
 public:
  explicit VisionMapper(const models::VisionSpec& spec) : config_(vision_hf_config(spec)) {
    for (const HfName& name : vision_hf_names(spec)) {
      const bool per_layer = absl::StrContains(name.fqn, "{}");
      for (int64_t layer = 0; layer < (per_layer ? spec.n_layers : 1); ++layer) {
        const std::string key = in_layer(name.hf, layer);
        layouts_[in_layer(name.fqn, layer)] = {.keys = {key}, .optional = name.optional};
        keys_.insert(key);
      }
    }
  }

  absl::StatusOr<std::vector<checkpoint::HfLayout>> layouts(const std::string& fqn) const override {
    const auto found = layouts_.find(fqn);
    if (found == layouts_.end())
      return absl::NotFoundError(absl::StrCat("the vision tower has no parameter \"", fqn, "\""));
    return std::vector<checkpoint::HfLayout>{found->second};
  }

  bool knows(const std::string& key) const override {
    return keys_.contains(key) || absl::StartsWith(key, "vision_model.head.") || absl::StartsWith(key, "text_model.") ||
           key == "logit_scale" || key == "logit_bias";
  }

  nlohmann::json config() const override { return config_; }

 private:
  const nlohmann::json config_;
  std::map<std::string, checkpoint::HfLayout> layouts_;  // By FQN.
  std::set<std::string> keys_;
};

}  // namespace

std::unique_ptr<checkpoint::HfMapper> make_vision_hf_mapper(const models::VisionSpec& spec) {
  return std::make_unique<VisionMapper>(spec);
}

}  // namespace titan::model
