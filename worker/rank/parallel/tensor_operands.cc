#include "worker/rank/parallel/tensor_operands.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "worker/rank/comm/functional.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/saved_activations.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Layers = std::vector<const nn::Linear*>;
using Parameters = std::vector<const nn::Parameter*>;

constexpr int64_t kPieceDim = 1;  // Dim of [B, T, D].

// Gathers the ranks' pieces of an operand with one scale. Eight-bit elements are sent as bytes, which every backend
// supports.
nn::Operand gathered(const nn::Operand& piece, const comm::Group& group) {
  const at::Tensor& own = piece.values;
  TORCH_CHECK(!piece.quantised() || piece.scales.numel() == 1, group.name(),
              ": pieces of an operand with several scales cannot be gathered");
  if (own.element_size() > 1) return {comm::gather(own, kPieceDim, group), piece.scales, piece.type};
  const at::Tensor bytes = comm::gather(own.view(at::kByte), kPieceDim, group);
  return {bytes.view(own.scalar_type()), piece.scales, piece.type};
}

at::Tensor gradient_or_deferred(const nn::Parameter& weight, const nn::Operand& dy, const nn::Operand& x) {
  const auto detached = [](const nn::Operand& one) { return nn::Operand{one.values.detach(), one.scales, one.type}; };
  return nn::compute_or_defer(
      weight, [&weight, dy = detached(dy), x = detached(x)] { return weight.products->weight_gradient(dy, x); });
}

at::Tensor product_or_kept(const nn::Parameter& weight, const nn::Operand& x, bool scatters,
                           const std::function<at::Tensor(at::Tensor)>& finish) {
  const nn::OpCall call{.kind = nn::OpCall::Kind::kProduct,
                        .weight = &weight,
                        .scatters = scatters,
                        .flops = 2.0 * static_cast<double>(x.values.numel()) * static_cast<double>(weight.shape[0])};
  return nn::saved_or_compute(call, [&] { return finish(weight.products->matmul_nt(x, nn::operand_of(weight))); });
}

// Both passes read a weight through its parameter, because its storage may be freed and refilled between them.
struct GatherOperand : torch::autograd::Function<GatherOperand> {
  static variable_list forward(AutogradContext* context, const at::Tensor& piece, at::TensorList /*weights*/,
                               const Parameters& parameters, const comm::Group* group) {
    const nn::Operand x = gathered(parameters[0]->products->of_input(piece), *group);
    context->save_for_backward({x.values, x.scales});
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    std::vector<int64_t> addresses;
    variable_list results;
    for (const nn::Parameter* weight : parameters) {
      addresses.push_back(reinterpret_cast<int64_t>(weight));
      results.push_back(product_or_kept(*weight, x, /*scatters=*/false, [](at::Tensor y) { return y; }));
    }
    context->saved_data["parameters"] = addresses;
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& group = *reinterpret_cast<const comm::Group*>(context->saved_data["group"].toInt());
    const std::vector<int64_t> addresses = context->saved_data["parameters"].toIntVector();
    const variable_list saved = context->get_saved_variables();
    const nn::Operand x{saved[0], saved[1], gradients[0].scalar_type()};
    variable_list results(1);
    at::Tensor sum;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto& weight = *reinterpret_cast<const nn::Parameter*>(addresses[i]);
      const nn::Operand dy = weight.products->of_gradient(gradients[i]);
      if (context->needs_input_grad(0)) weight.products->add_matmul_nn(sum, dy, nn::operand_of(weight));
      results.push_back(context->needs_input_grad(i + 1) ? gradient_or_deferred(weight, dy, x) : at::Tensor());
    }
    if (sum.defined()) results[0] = comm::reduce_scatter(sum, kPieceDim, group);
    results.resize(results.size() + 2);
    return results;
  }
};

struct MultiplyAndScatter : torch::autograd::Function<MultiplyAndScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*weight*/,
                            const nn::Parameter* parameter, const comm::Group* group) {
    const nn::Operand x = parameter->products->of_input(input);
    context->save_for_backward({x.values, x.scales});
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["parameter"] = reinterpret_cast<int64_t>(parameter);
    return product_or_kept(*parameter, x, /*scatters=*/true,
                           [&](const at::Tensor& y) { return comm::reduce_scatter(y, kPieceDim, *group); });
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& group = *reinterpret_cast<const comm::Group*>(context->saved_data["group"].toInt());
    const auto& weight = *reinterpret_cast<const nn::Parameter*>(context->saved_data["parameter"].toInt());
    const variable_list saved = context->get_saved_variables();
    const nn::Operand dy = gathered(weight.products->of_gradient(gradients[0]), group);
    variable_list results(4);
    if (context->needs_input_grad(0)) weight.products->add_matmul_nn(results[0], dy, nn::operand_of(weight));
    if (context->needs_input_grad(1)) results[1] = gradient_or_deferred(weight, dy, {saved[0], saved[1], dy.type});
    return results;
  }
};

std::vector<at::Tensor> project_of_one_recipe(const at::Tensor& piece, const Layers& layers, const comm::Group& group) {
  if (layers[0]->weight().products == nullptr) return nn::project_each(comm::gather(piece, kPieceDim, group), layers);
  std::vector<at::Tensor> weights;
  Parameters parameters;
  for (const nn::Linear* layer : layers) {
    weights.push_back(layer->weight().weight);
    parameters.push_back(&layer->weight());
  }
  std::vector<at::Tensor> results = GatherOperand::apply(piece, at::TensorList(weights), parameters, &group);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i]->bias() != nullptr) results[i] = results[i] + layers[i]->bias()->weight;
  }
  return results;
}

}  // namespace

nn::Projections operand_all_gather_matmuls(const comm::Group& group) {
  return [&group](const at::Tensor& piece, const Layers& layers) {
    std::vector<at::Tensor> results;
    for (auto first = layers.begin(); first != layers.end();) {
      const auto last = std::find_if(first, layers.end(), [&](const nn::Linear* one) {
        return one->weight().products != (*first)->weight().products;
      });
      for (at::Tensor& result : project_of_one_recipe(piece, Layers(first, last), group))
        results.push_back(std::move(result));
      first = last;
    }
    return results;
  };
}

nn::Linear::Product operand_all_gather_matmul(const comm::Group& group) {
  return [&group](const at::Tensor& piece, const nn::Parameter& weight) {
    if (weight.products == nullptr) return nn::matrix_product(comm::gather(piece, kPieceDim, group), weight);
    return GatherOperand::apply(piece, at::TensorList({weight.weight}), Parameters{&weight}, &group)[0];
  };
}

nn::Linear::Product operand_matmul_reduce_scatter(const comm::Group& group) {
  return [&group](const at::Tensor& input, const nn::Parameter& weight) {
    if (weight.products == nullptr) return scatter_sum(nn::matrix_product(input, weight), kPieceDim, group);
    return MultiplyAndScatter::apply(input, weight.weight, &weight, &group);
  };
}

}  // namespace titan::parallel
