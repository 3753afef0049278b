#include "worker/rank/nn/layers.h"

#include <algorithm>
#include <utility>

#include "worker/rank/nn/deferred_gradients.h"
#include "worker/rank/nn/products.h"
#include "worker/rank/nn/rms_norm.h"

namespace titan::nn {

at::ScalarType accumulate_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

Linear::Linear(const Declare& declare, const std::string& fqn, int64_t in_features, int64_t out_features, Init init,
               const Init* bias_init)
    : weight_(&declare(fqn, {out_features, in_features}, init)) {
  weight_->of_linear = true;
  if (bias_init != nullptr) bias_ = &declare(fqn.substr(0, fqn.rfind('.')) + ".bias", {out_features}, *bias_init);
}

at::Tensor Linear::forward(const at::Tensor& input) const {
  const at::Tensor x = through(seams.input, input);
  const at::Tensor y = through(seams.output, product ? product(x, *weight_) : matrix_product(x, *weight_));
  return bias_ == nullptr ? y : y + bias_->weight;
}

namespace {

// Whether the layer is its matrix product and, at most, a bias.
bool only_multiplies(const Linear& layer) { return !layer.product && !layer.seams.input && !layer.seams.output; }

std::vector<at::Tensor> project_together(const at::Tensor& input, const std::vector<const Linear*>& layers) {
  std::vector<const Parameter*> weights;
  for (const Linear* layer : layers) weights.push_back(&layer->weight());
  std::vector<at::Tensor> results = matrix_products(input, weights);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i]->bias() != nullptr) results[i] = results[i] + layers[i]->bias()->weight;
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> project_each(const at::Tensor& input, const std::vector<const Linear*>& layers) {
  const ProductRecipe* const recipe = layers.front()->weight().products;
  const auto together = [&](const Linear* layer) {
    const Parameter& weight = layer->weight();
    return only_multiplies(*layer) && weight.products == recipe &&
           (recipe != nullptr || own_products_take(input, weight.weight));
  };
  if (std::all_of(layers.begin(), layers.end(), together)) return project_together(input, layers);
  std::vector<at::Tensor> results;
  results.reserve(layers.size());
  for (const Linear* layer : layers) results.push_back(layer->forward(input));
  return results;
}

RmsNorm::RmsNorm(const Declare& declare, const std::string& fqn, int64_t dim, double eps)
    : weight_(&declare(fqn, {dim}, Init{Init::Kind::kOnes})), eps_(eps) {}

at::Tensor RmsNorm::forward(const at::Tensor& input) const {
  const at::Tensor x = through(seams.input, input);
  return through(seams.output, rms_norm(x, weight_->weight, eps_));
}

SumAndNorm RmsNorm::forward_sum(const at::Tensor& input, const at::Tensor& residual) const {
  if (seams.input) {
    const at::Tensor sum = residual.defined() ? input + residual : input;
    return {sum, forward(sum)};
  }
  SumAndNorm both = sum_and_rms_norm(input, residual, weight_->weight, eps_);
  both.norm = through(seams.output, both.norm);
  return both;
}

Embedding::Embedding(const Declare& declare, const std::string& fqn, int64_t vocab_size, int64_t dim, Init init)
    : weight_(&declare(fqn, {vocab_size, dim}, init)) {}

at::Tensor Embedding::forward(const at::Tensor& tokens) const {
  const at::Tensor ids = through(seams.input, tokens);
  return through(seams.output, lookup ? lookup(ids, *weight_) : at::embedding(weight_->weight, ids));
}

}  // namespace titan::nn
