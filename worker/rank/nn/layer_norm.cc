#include "worker/rank/nn/layer_norm.h"

namespace titan::nn {

LayerNorm::LayerNorm(const Declare& declare, const std::string& fqn, int64_t dim, double eps)
    : weight_(&declare(fqn + ".weight", {dim}, Init{Init::Kind::kOnes})),
      bias_(&declare(fqn + ".bias", {dim}, Init{Init::Kind::kZeros})),
      eps_(eps) {}

at::Tensor LayerNorm::forward(const at::Tensor& input) const {
  return at::layer_norm(input, {input.size(-1)}, weight_->weight, bias_->weight, eps_);
}

}  // namespace titan::nn
