#include "worker/rank/model/hf_names.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/hf_config/qwen3_vl.h"
#include "common/plan/models/qwen3_vl.h"
#include "worker/rank/model/families.h"
#include "worker/rank/model/qwen3_vl/qwen3_vl.h"

namespace titan::model::qwen3_vl {
namespace {

using checkpoint::HfLayout;

constexpr char kTower[] = "visual.", kPatchEmbedding[] = "visual.patch_embed.proj.weight";
constexpr char kLanguage[] = "model.language_model.";

HfNames language_names(const models::ModelSpec& text) {
  HfNames names;
  const std::string layer = absl::StrCat(kLanguage, "layers.{}.");
  add_embedding_and_norms(names, kLanguage);
  add_attention_projections(names, kLanguage, /*bias=*/false);
  for (const char* norm : {"q_norm", "k_norm"})
    names.push_back(
        {absl::StrCat("layers.{}.attention.", norm, ".weight"), absl::StrCat(layer, "self_attn.", norm, ".weight")});
  if (text.moe) {
    const std::string experts = layer + "mlp.experts.";
    names.push_back({"layers.{}.moe.experts.w1", experts + "gate_up_proj", HfForm::kTransposedFirstHalf});
    names.push_back({"layers.{}.moe.experts.w3", experts + "gate_up_proj", HfForm::kTransposedSecondHalf});
    names.push_back({"layers.{}.moe.experts.w2", experts + "down_proj", HfForm::kTransposed});
    names.push_back({"layers.{}.moe.router.gate.weight", layer + "mlp.gate.weight"});
    names.push_back({"layers.{}.moe.expert_bias", "", HfForm::kNotStored});
  } else {
    add_swiglu(names, "layers.{}.feed_forward", layer + "mlp");
  }
  if (!text.tied_embeddings) names.push_back({"output.weight", "lm_head.weight"});
  return names;
}

nlohmann::json language_config(const models::ModelSpec& text, int64_t) {
  nlohmann::json config = common_config(text, "", "");
  if (!text.moe) {
    config["intermediate_size"] = text.ffn_hidden;
    return config;
  }
  config["intermediate_size"] = text.moe->hidden;  // For dense layers, which these models do not have.
  config["moe_intermediate_size"] = text.moe->hidden;
  config["num_experts"] = text.moe->num_experts;
  config["num_experts_per_tok"] = text.moe->top_k;
  config["norm_topk_prob"] = text.moe->route_norm;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = nlohmann::json::array();
  return config;
}

class Mapper final : public checkpoint::HfMapper {
 public:
  Mapper(const models::ModelSpec& text, const models::Qwen3VlSpec& spec)
      : text_(make_hf_mapper({.name = text.name, .names = language_names, .config = language_config}, text)),
        kernel_(
            {spec.vision.channels, spec.vision.temporal_patch_size, spec.vision.patch_size, spec.vision.patch_size}),
        config_(hf_config::qwen3_vl_config(text, spec, text_->config())) {
    for (models::ParameterSpec& tensor : models::parameters(spec.vision)) tower_.insert(std::move(tensor.fqn));
  }

  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const override {
    if (!absl::StartsWith(fqn, kTower)) return text_->layouts(fqn);
    if (!tower_.contains(fqn))
      return absl::NotFoundError(absl::StrCat("the vision tower has no parameter \"", fqn, "\""));
    HfLayout layout{.keys = {absl::StrCat("model.", fqn)}};
    if (fqn == kPatchEmbedding) layout.kernel = kernel_;  // A convolution whose stride is its size.
    return std::vector<HfLayout>{std::move(layout)};
  }

  bool knows(const std::string& key) const override {
    return text_->knows(key) || (absl::StartsWith(key, "model.") && tower_.contains(key.substr(sizeof("model.") - 1)));
  }

  nlohmann::json config() const override { return config_; }

 private:
  const std::unique_ptr<checkpoint::HfMapper> text_;
  const std::vector<int64_t> kernel_;
  const nlohmann::json config_;
  std::set<std::string> tower_;  // FQNs.
};

std::unique_ptr<checkpoint::HfMapper> mapper(const models::ModelSpec& spec) {
  return make_mapper(language_model(spec), *spec.qwen3_vl);
}

}  // namespace

HfFamily hf() { return {.name = "qwen3_vl", .mapper = mapper}; }

std::unique_ptr<checkpoint::HfMapper> make_mapper(const models::ModelSpec& text, const models::Qwen3VlSpec& spec) {
  return std::make_unique<Mapper>(text, spec);
}

}  // namespace titan::model::qwen3_vl
