#include "common/base/status/status.h"
#include "worker/rank/model/families.h"
#include "worker/rank/model/flux/flux.h"
#include "worker/rank/model/flux/hf_names.h"
#include "worker/rank/model/flux/inputs.h"
#include "worker/rank/model/flux/objective.h"

// Flux as the engine trains it: the loss is the squared distance of the predicted velocity from noise minus latents
// (rectified flow, arXiv 2209.03003).
namespace titan::model::flux {
namespace {

at::Tensor squared_error(const at::Tensor& prediction, const nn::MicrobatchContext& context) {
  const at::Tensor& target = context.tensor(kTarget);
  const at::ScalarType wide = prediction.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor errors = (prediction.to(wide) - target.to(wide)).square();
  const auto weights = context.tensors.find(kWeights);
  return weights == context.tensors.end() ? errors.sum() : (errors * weights->second).sum();
}

std::unique_ptr<checkpoint::HfMapper> mapper(const models::ModelSpec& spec) { return make_mapper(*spec.flux); }

}  // namespace

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& /*options*/) {
  Model model;
  TITAN_ASSIGN_OR_RETURN(model.blocks, build_blocks(*spec.flux));
  model.input = [](const nn::MicrobatchContext& context) { return context.tensor(kLatents); };
  model.edge_length = [](const nn::MicrobatchContext& context) {
    return 1 + context.tensor(kTxtIds).size(1) + context.tensor(kImgIds).size(1);
  };
  model.loss = squared_error;
  model.parallelize = [sizes = *spec.flux](Model& self, const ParallelOptions& options) {
    return parallelize(self.blocks, sizes, options);
  };
  return model;
}

std::unique_ptr<Objective> objective(const models::ModelSpec& spec) {
  return std::make_unique<FluxObjective>(*spec.flux);
}

HfFamily hf() { return {.name = "flux", .mapper = mapper}; }

}  // namespace titan::model::flux
