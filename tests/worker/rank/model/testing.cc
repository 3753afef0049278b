#include "tests/worker/rank/model/testing.h"

#include <torch/torch.h>

#include <cmath>

#include "tests/worker/rank/model/parameter_part.h"

namespace titan::testing {

Weights draw_weights(const model::Model& model, const models::ModelSpec& spec, uint64_t seed) {
  torch::manual_seed(seed);
  Weights weights;
  for (const auto& block : model.blocks) {
    for (const nn::Parameter& p : block->parameters()) {
      const bool flat = p.shape.size() == 1 || p.fqn.find("mlp1_bias") != std::string::npos ||
                        p.fqn.find("mlp2_bias") != std::string::npos;
      at::Tensor value = at::randn(p.global_shape, at::kDouble);
      if (p.fqn.find("norm") != std::string::npos) {
        value = 1 + 0.3 * value;
      } else if (p.fqn.find("sinks") != std::string::npos) {
        value = 1.5 + 0.3 * value;  // Otherwise keys outweigh sinks so far that their noise is lost.
      } else if (!flat && p.fqn != "tok_embeddings.weight") {
        value = value * (1.5 / std::sqrt(static_cast<double>(p.global_shape.back())));
      }
      weights[p.fqn] = value.requires_grad_();
    }
    for (const nn::Buffer& buffer : block->buffers()) {
      weights[buffer.fqn] = 0.3 * at::randn({spec.moe->num_experts}, at::kDouble);
    }
  }
  return weights;
}

void set_weights(const model::Model& model, const Weights& weights, at::ScalarType type) {
  for (const auto& block : model.blocks) {
    block->init_buffers(at::kCPU, type);
    for (nn::Parameter& p : block->parameters()) {
      const at::Tensor part = part_of(weights.at(p.fqn).detach(), p);
      p.weight = part.to(type, /*non_blocking=*/false, /*copy=*/true).contiguous().requires_grad_();
    }
    for (nn::Buffer& buffer : block->buffers()) buffer.value.copy_(weights.at(buffer.fqn));
  }
}

at::Tensor draw_documents(int64_t batch, int64_t length) {
  const at::Tensor ends = at::rand({batch, length}).lt(0.15);
  return at::cumsum(ends, 1) - ends.to(at::kLong);
}

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor w = want.to(at::kDouble);
  const double size = w.norm().item<double>(), off = (got.to(at::kDouble) - w).norm().item<double>();
  return size > 0 ? off / size : off;
}

}  // namespace titan::testing
