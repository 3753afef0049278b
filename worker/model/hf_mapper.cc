#include "worker/model/hf_mapper.h"

#include <utility>

#include "worker/model/hf_names.h"

namespace titan::model {
namespace {

class SpecMapper : public checkpoint::HfMapper {
 public:
  SpecMapper(models::ModelSpec spec, nlohmann::json config) : spec_(std::move(spec)), config_(std::move(config)) {}

  absl::StatusOr<std::vector<std::string>> keys(const std::string& fqn) const override {
    const absl::StatusOr<HfTensor> place = hf_tensor(spec_, fqn);
    if (!place.ok()) return place.status();
    return std::vector<std::string>{place->key};
  }

  bool same_layout(const std::string& fqn) const override {
    const absl::StatusOr<HfTensor> place = hf_tensor(spec_, fqn);
    return place.ok() && place->permute_heads == 0;
  }

  std::vector<at::Tensor> to_hf(const std::string& fqn, const at::Tensor& full) const override {
    return {model::to_hf(hf_tensor(spec_, fqn).value(), full)};
  }

  at::Tensor from_hf(const std::string& fqn, const std::vector<at::Tensor>& tensors) const override {
    return model::from_hf(hf_tensor(spec_, fqn).value(), tensors.at(0));
  }

  nlohmann::json config() const override { return config_; }

 private:
  models::ModelSpec spec_;
  nlohmann::json config_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<checkpoint::HfMapper>> make_hf_mapper(const models::ModelSpec& spec) {
  absl::StatusOr<nlohmann::json> config = hf_config(spec);
  if (!config.ok()) return config.status();
  return std::make_unique<SpecMapper>(spec, *std::move(config));
}

}  // namespace titan::model
