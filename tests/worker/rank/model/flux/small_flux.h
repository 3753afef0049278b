#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "common/plan/models/flux.h"
#include "tests/worker/rank/model/parameter_part.h"
#include "worker/rank/model/flux/blocks.h"
#include "worker/rank/model/flux/flux.h"

// A small Flux with random weights and inputs, for tests.
namespace titan::testing {

inline models::FluxSpec small_flux(bool guidance = true) {
  return {.flavor = "small",
          .dim = 64,
          .n_heads = 4,
          .n_double_blocks = 2,
          .n_single_blocks = 2,
          .in_channels = 8,
          .txt_width = 20,
          .vec_width = 10,
          .time_channels = 12,
          .axes_dim = {4, 4, 8},
          .guidance_embed = guidance};
}

// Values of whole parameters by name, fp64. All parts have a visible effect, also what is zero in a fresh model.
using FluxWeights = std::map<std::string, at::Tensor>;

inline FluxWeights draw_flux_weights(const models::FluxSpec& spec) {
  FluxWeights weights;
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    at::Tensor value = at::randn(tensor.shape, at::kDouble);
    if (tensor.fqn.find("_norm.") != std::string::npos) {
      value = 1 + 0.3 * value;
    } else {
      value = value * (tensor.shape.size() == 1 ? 0.3 : 1.2 / std::sqrt(static_cast<double>(tensor.shape[1])));
    }
    weights[tensor.fqn] = value;
  }
  return weights;
}

// Gives the blocks' parameters their parts of the weights in `type`.
inline void set_flux_weights(const model::flux::Blocks& blocks, const FluxWeights& weights, at::ScalarType type) {
  for (const auto& block : blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      parameter.weight = part_of(weights.at(parameter.fqn), parameter)
                             .to(type, /*non_blocking=*/false, /*copy=*/true)
                             .contiguous()
                             .requires_grad_();
    }
  }
}

// A microbatch with its latents, and the gradient of the prediction.
struct FluxBatch {
  at::Tensor latents, grad_out;  // [B, Ti, in_channels]
  model::flux::FluxInputs inputs;
};

// Ids differ between tokens, and between rows with `rows_differ`.
inline FluxBatch draw_flux_batch(const models::FluxSpec& spec, int64_t rows, int64_t txt, int64_t img,
                                 bool rows_differ = false) {
  const auto ids = [&](int64_t tokens) {
    return at::randint(9, {rows_differ ? rows : 1, tokens, 3}, at::kLong).to(at::kFloat);
  };
  const auto normal = [](std::vector<int64_t> shape) { return at::randn(shape, at::kDouble); };
  return {.latents = normal({rows, img, spec.in_channels}),
          .grad_out = normal({rows, img, spec.in_channels}),
          .inputs = {.txt = normal({rows, txt, spec.txt_width}),
                     .y = normal({rows, spec.vec_width}),
                     .timesteps = at::rand({rows}),
                     .guidance = spec.guidance_embed ? 1 + 3 * at::rand({rows}) : at::Tensor(),
                     .txt_ids = ids(txt),
                     .img_ids = ids(img)}};
}

inline at::Tensor run_flux(const model::flux::Blocks& blocks, const at::Tensor& latents,
                           const model::flux::FluxInputs& inputs) {
  at::Tensor x = latents;
  for (const auto& block : blocks) x = dynamic_cast<model::flux::FluxBlock&>(*block).run(x, inputs);
  return x;
}

// The prediction, and gradients of this rank's parameters, in their order, and of latents and text.
struct FluxResults {
  at::Tensor prediction;
  std::vector<nn::Parameter*> parameters;
  std::vector<at::Tensor> gradients;
  at::Tensor grad_latents, grad_txt;
};

inline FluxResults train_flux(const model::flux::Blocks& blocks, FluxBatch batch, at::ScalarType type) {
  FluxResults results;
  batch.latents = batch.latents.to(type).detach().requires_grad_();
  batch.inputs.txt = batch.inputs.txt.to(type).detach().requires_grad_();
  std::vector<at::Tensor> leaves{batch.latents, batch.inputs.txt};
  for (const auto& block : blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      results.parameters.push_back(&parameter);
      leaves.push_back(parameter.weight);
    }
  }
  const at::Tensor prediction = run_flux(blocks, batch.latents, batch.inputs);
  results.gradients = torch::autograd::grad({prediction}, leaves, {batch.grad_out.to(type)});
  results.prediction = prediction.detach();
  results.grad_latents = results.gradients[0];
  results.grad_txt = results.gradients[1];
  results.gradients.erase(results.gradients.begin(), results.gradients.begin() + 2);
  return results;
}

}  // namespace titan::testing
