#include "worker/rank/model/vision/hf_names.h"

#include <memory>
#include <string>
#include <utility>

#include "common/plan/models/vision.h"
#include "worker/rank/model/families.h"

namespace titan::model::vlm {
namespace {

// The language model under llama3's names, and the tower under those of Siglip2VisionModel. No class of transformers
// has both, so config.json describes each as transformers describes it alone.
class VlmMapper final : public checkpoint::HfMapper {
 public:
  explicit VlmMapper(const models::ModelSpec& spec)
      : language_(make_hf_mapper(llama3::hf(), language_model(spec))), vision_(make_vision_hf_mapper(*spec.vision)) {}

  absl::StatusOr<std::vector<checkpoint::HfLayout>> layouts(const std::string& fqn) const override {
    return models::is_vision_parameter(fqn) ? vision_->layouts(fqn) : language_->layouts(fqn);
  }
  bool knows(const std::string& key) const override { return language_->knows(key) || vision_->knows(key); }
  nlohmann::json config() const override {
    return {{"architectures", {"Llama3Siglip2"}},
            {"model_type", "llama3_siglip2"},
            {"text_config", language_->config()},
            {"vision_config", vision_->config()}};
  }

 private:
  static models::ModelSpec language_model(models::ModelSpec spec) {
    spec.vision.reset();
    return spec;
  }

  const std::unique_ptr<checkpoint::HfMapper> language_, vision_;
};

std::unique_ptr<checkpoint::HfMapper> mapper(const models::ModelSpec& spec) {
  return std::make_unique<VlmMapper>(spec);
}

}  // namespace

HfFamily hf() { return {.name = "vlm", .mapper = mapper}; }

}  // namespace titan::model::vlm
