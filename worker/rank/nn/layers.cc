#include "worker/rank/nn/layers.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "worker/rank/kernels/cpu/rms_norm.h"
#include "worker/rank/nn/matmul.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/own_kernels.h"
#include "worker/rank/nn/wide_norm.h"

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

// Whether the layer computes only its matrix product and possibly a bias.
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
  const MatmulRecipe* const recipe = layers.front()->weight().products;
  const auto together = [&](const Linear* layer) {
    const Parameter& weight = layer->weight();
    return only_multiplies(*layer) && weight.products == recipe &&
           (recipe != nullptr || can_use_own_gemm(input, weight.weight));
  };
  if (std::all_of(layers.begin(), layers.end(), together)) return project_together(input, layers);
  std::vector<at::Tensor> results;
  results.reserve(layers.size());
  for (const Linear* layer : layers) results.push_back(layer->forward(input));
  return results;
}

RmsNorm::RmsNorm(const Declare& declare, const std::string& fqn, int64_t dim, double eps, double offset)
    : weight_(&declare(fqn, {dim}, Init{offset == 1 ? Init::Kind::kZeros : Init::Kind::kOnes})),
      eps_(eps),
      offset_(offset) {}

at::Tensor RmsNorm::forward(const at::Tensor& input) const {
  const at::Tensor x = through(seams.input, input);
  return through(seams.output,
                 wide() ? wide_rms_norm(x, weight_->weight, eps_, offset_, ranks) : rms_norm(x, weight_->weight, eps_));
}

SumAndNorm RmsNorm::forward_sum(const at::Tensor& input, const at::Tensor& residual) const {
  if (seams.input || wide()) {
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

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const void* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

int64_t scratch_for(const at::Tensor& x) {
  if (device_kernels_for(x, kernels::TrainingPart::kModel) == nullptr) return kernels::rms_norm_scratch(x.size(1));
  return kernels::device_rms_norm_parts(x.size(0), x.size(1)) * x.size(1);
}

// Results of a norm: `sum` is the tensor that was normalized (the input without a residual), `y` its norm, and
// `factors` has one number per row.
struct Normed {
  at::Tensor sum, y, factors;
};

Normed normalize(const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  const at::Tensor x = rows_of(input);
  const int64_t dim = x.size(1);
  Normed to = {.sum = input,
               .y = uninitialized(input.sizes(), input.options()),
               .factors = uninitialized({x.size(0)}, input.options().dtype(at::kFloat))};
  kernels::RmsNormForward args = {.rows = x.size(0),
                                  .dim = dim,
                                  .x = x.const_data_ptr(),
                                  .x_stride = x.stride(0),
                                  .weight = data_or_null(weight),
                                  .y = to.y.mutable_data_ptr(),
                                  .y_stride = dim,
                                  .inverse_rms = to.factors.mutable_data_ptr<float>(),
                                  .eps = eps,
                                  .threads = at::get_num_threads()};
  at::Tensor other;
  if (residual.defined()) {
    other = rows_of(residual);
    to.sum = uninitialized(input.sizes(), input.options());
    args.residual = other.const_data_ptr();
    args.residual_stride = other.stride(0);
    args.sum = to.sum.mutable_data_ptr();
    args.sum_stride = dim;
  }
  compute_rows<kernels::RmsNormForward>(x, kernels::rms_norm_forward, args);
  return to;
}

// Returns the gradients of the normalized tensor and of the weight, the latter undefined if not wanted. `past`
// (undefined: none) is the gradient that reaches the normalized tensor past the norm.
std::pair<at::Tensor, at::Tensor> normalize_backward(const at::Tensor& input, const at::Tensor& weight,
                                                     const at::Tensor& factors, const at::Tensor& gradient,
                                                     const at::Tensor& past, bool wants_weight) {
  const at::Tensor x = rows_of(input), dy = rows_of(gradient);
  const at::Tensor also = past.defined() ? rows_of(past) : at::Tensor();
  const int64_t dim = x.size(1);
  const at::Tensor dx = uninitialized(input.sizes(), input.options());
  const at::Tensor dweight = wants_weight ? uninitialized({dim}, weight.options()) : at::Tensor();
  const at::Tensor scratch =
      wants_weight ? uninitialized({scratch_for(x)}, input.options().dtype(at::kFloat)) : at::Tensor();
  compute_rows<kernels::RmsNormBackward>(x, kernels::rms_norm_backward,
                                         {.rows = x.size(0),
                                          .dim = dim,
                                          .x = x.const_data_ptr(),
                                          .x_stride = x.stride(0),
                                          .dy = dy.const_data_ptr(),
                                          .dy_stride = dy.stride(0),
                                          .weight = data_or_null(weight),
                                          .inverse_rms = factors.const_data_ptr<float>(),
                                          .also = data_or_null(also),
                                          .also_stride = also.defined() ? also.stride(0) : 0,
                                          .dx = dx.mutable_data_ptr(),
                                          .dx_stride = dim,
                                          .dweight = wants_weight ? dweight.mutable_data_ptr() : nullptr,
                                          .dweight_type = kernels::Dtype::kBf16,
                                          .scratch = wants_weight ? scratch.mutable_data_ptr<float>() : nullptr,
                                          .threads = at::get_num_threads()});
  return {dx, dweight};
}

std::optional<at::Tensor> if_defined(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

struct OwnRmsNorm : torch::autograd::Function<OwnRmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            double eps) {
    const at::Tensor scale = weight.value_or(at::Tensor());
    const Normed normed = normalize(input, {}, scale, eps);
    context->save_for_backward({input, scale, normed.factors});
    return normed.y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const bool wants_weight = saved[1].defined() && context->needs_input_grad(1);
    const auto [dx, dweight] = normalize_backward(saved[0], saved[1], saved[2], gradients[0], {}, wants_weight);
    return {dx, dweight, {}};
  }
};

struct OwnSumAndNorm : torch::autograd::Function<OwnSumAndNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const std::optional<at::Tensor>& residual, const std::optional<at::Tensor>& weight,
                               double eps) {
    const at::Tensor scale = weight.value_or(at::Tensor());
    const Normed normed = normalize(input, residual.value_or(at::Tensor()), scale, eps);
    context->set_materialize_grads(false);
    context->saved_data["residual"] = residual.has_value();
    context->save_for_backward({normed.sum, scale, normed.factors});
    return {normed.sum, normed.y};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &past = gradients[0], &dy = gradients[1];
    const bool has_residual = context->saved_data["residual"].toBool();
    if (!dy.defined()) return {past, has_residual ? past : at::Tensor(), {}, {}};
    const bool wants_weight = saved[1].defined() && context->needs_input_grad(has_residual ? 2 : 1);
    const auto [dx, dweight] = normalize_backward(saved[0], saved[1], saved[2], dy, past, wants_weight);
    return {dx, has_residual ? dx : at::Tensor(), dweight, {}};
  }
};

bool own_norm_takes(const at::Tensor& x, const at::Tensor& weight) {
  return can_use_row_kernels(x, kernels::TrainingPart::kModel) &&
         (!weight.defined() || weight.scalar_type() == x.scalar_type());
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (own_norm_takes(x, weight)) return OwnRmsNorm::apply(x, if_defined(weight), eps);
  return at::rms_norm(x, x.size(-1), if_defined(weight), eps);
}

SumAndNorm sum_and_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  const bool alike =
      !residual.defined() || (residual.scalar_type() == x.scalar_type() && residual.sizes() == x.sizes());
  if (own_norm_takes(x, weight) && alike) {
    const variable_list both = OwnSumAndNorm::apply(x, if_defined(residual), if_defined(weight), eps);
    return {both[0], both[1]};
  }
  const at::Tensor sum = residual.defined() ? x + residual : x;
  return {sum, rms_norm(sum, weight, eps)};
}

}  // namespace titan::nn
