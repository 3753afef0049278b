#include "worker/rank/parallel/tensor_overlap.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "worker/rank/comm/functional.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/saved_activations.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Returns piece `rank` of n along the sequence of [B, T, D]: a view [B, T / n, D].
at::Tensor sequence_piece(const at::Tensor& whole, int rank, int n) {
  const int64_t length = whole.size(1) / n;
  return whole.narrow(1, rank * length, length);
}

// Returns the other ranks in an order in which, at each step, two ranks are each other's partner.
std::vector<int> partners(const comm::Group& group) {
  std::vector<int> order;
  for (int step = 0; step < group.size(); ++step) {
    const int partner = (step - group.rank() + group.size()) % group.size();
    if (partner != group.rank()) order.push_back(partner);
  }
  return order;
}

// Eight-bit elements are sent as bytes, which every backend supports.
at::Tensor as_sent(const at::Tensor& x) { return x.element_size() == 1 ? x.view(at::kByte) : x; }

// Sends one tensor to a partner and receives one of the same shape from it. Both messages are in flight.
class Swap {
 public:
  // The lower rank sends first, so that operations match even if both directions share one queue (NCCL).
  Swap(const comm::Group& group, int partner, const at::Tensor& outgoing, at::Tensor incoming)
      : incoming_(std::move(incoming)) {
    if (group.rank() < partner) send_ = group.send(as_sent(outgoing), partner);
    recv_ = group.recv(as_sent(incoming_), partner);
    if (group.rank() > partner) send_ = group.send(as_sent(outgoing), partner);
  }

  const at::Tensor& receive() {
    recv_.wait();
    return incoming_;
  }
  void finish() {
    recv_.wait();
    send_.wait();
  }

 private:
  at::Tensor incoming_;
  comm::Pending send_, recv_;
};

// out = x matrix, one batch row at a time, so that a piece of the sequence is read and written without a copy.
void multiply_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& matrix) {
  for (int64_t row = 0; row < x.size(0); ++row) {
    at::Tensor target = out[row];
    at::mm_out(target, x[row], matrix);
  }
}

// A matrix [D, columns] by which pieces of the sequence are multiplied.
struct Factor {
  int64_t columns = 0;
  at::ScalarType type = at::kBFloat16;  // Type of the results.
  // piece [B, t, D], out [B, t, columns].
  std::function<void(const at::Tensor& out, const at::Tensor& piece)> multiply_into;
};

Factor factor_of(const at::Tensor& matrix) {
  return {matrix.size(1), matrix.scalar_type(),
          [matrix](const at::Tensor& out, const at::Tensor& piece) { multiply_into(out, piece, matrix); }};
}

// Requires one scale, valid for every piece of an operand.
void check_pieces(const nn::Operand& operand, const nn::Parameter& weight) {
  TORCH_CHECK(!operand.quantised() || operand.scales.numel() == 1, weight.fqn,
              ": operands with several scales cannot be split into pieces");
}

// Returns the transposed weight, for matmuls with pieces of `x` by the weight's recipe.
Factor forward_factor(const nn::Parameter& weight, const nn::Operand& x) {
  check_pieces(x, weight);
  return {weight.shape[0], x.type,
          [&recipe = nn::recipe_of(weight), matrix = nn::operand_of(weight), scales = x.scales, type = x.type](
              const at::Tensor& out, const at::Tensor& piece) {
            out.copy_(recipe.matmul_nt({piece.contiguous(), scales, type}, matrix));
          }};
}

// Returns the weight, for matmuls with pieces of the gradient `dy` by the weight's recipe.
Factor backward_factor(const nn::Parameter& weight, const nn::Operand& dy) {
  check_pieces(dy, weight);
  return {weight.shape[1], dy.type,
          [&recipe = nn::recipe_of(weight), matrix = nn::operand_of(weight), scales = dy.scales, type = dy.type](
              const at::Tensor& out, const at::Tensor& piece) {
            at::Tensor product;
            recipe.add_matmul_nn(product, {piece.contiguous(), scales, type}, matrix);
            out.copy_(product);
          }};
}

struct Gathered {
  at::Tensor whole;                  // [B, T, D]
  std::vector<at::Tensor> products;  // [B, T, columns] for each factor
};

// Gathers the ranks' pieces [B, t, D], plain or quantised, and multiplies them.
Gathered gather_and_multiply_all(const at::Tensor& piece, const std::vector<Factor>& factors,
                                 const comm::Group& group) {
  const int n = group.size();
  const at::Tensor own = piece.contiguous();
  const int64_t batch = own.size(0), length = own.size(1);
  Gathered result{at::empty({batch, n * length, own.size(2)}, own.options()), {}};
  for (const Factor& factor : factors) {
    result.products.push_back(at::empty({batch, n * length, factor.columns}, own.options().dtype(factor.type)));
  }
  const auto place = [&](int rank, const at::Tensor& arrived) {
    const at::Tensor target = sequence_piece(result.whole, rank, n);
    if (!target.is_alias_of(arrived)) target.copy_(arrived);
    for (size_t i = 0; i < factors.size(); ++i) {
      factors[i].multiply_into(sequence_piece(result.products[i], rank, n), arrived);
    }
  };
  const auto swap_with = [&](int partner) {
    const at::Tensor target = sequence_piece(result.whole, partner, n);
    return Swap(group, partner, own, target.is_contiguous() ? target : at::empty_like(own));
  };

  const std::vector<int> order = partners(group);
  std::vector<Swap> swaps;
  swaps.push_back(swap_with(order[0]));
  place(group.rank(), own);
  for (size_t step = 0; step < order.size(); ++step) {
    const at::Tensor arrived = swaps[step].receive();
    if (step + 1 < order.size()) swaps.push_back(swap_with(order[step + 1]));
    place(order[step], arrived);
  }
  for (Swap& swap : swaps) swap.finish();
  return result;
}

// This rank's piece of a sum over ranks while the other ranks' terms are in flight.
class SumInFlight {
 public:
  // The terms are pieces of the sum over i of inputs[i] [B, T, rows_i] times factors[i] [rows_i, D].
  SumInFlight(const std::vector<at::Tensor>& inputs, const std::vector<Factor>& factors, const comm::Group& group)
      : terms_(group.size()) {
    const int n = group.size();
    TORCH_CHECK(inputs[0].size(1) % n == 0, group.name(), ": a sequence of ", inputs[0].size(1),
                " tokens is not divisible by ", n, " ranks");
    const auto term = [&](int rank) {
      at::Tensor sum = multiply(inputs.back(), factors.back(), rank, n);
      for (size_t i = inputs.size() - 1; i-- > 0;) sum.add_(multiply(inputs[i], factors[i], rank, n));
      return sum;
    };
    for (const int partner : partners(group)) {
      const at::Tensor outgoing = term(partner);
      terms_[partner] = at::empty_like(outgoing);
      swaps_.emplace_back(group, partner, outgoing, terms_[partner]);
    }
    terms_[group.rank()] = term(group.rank());
  }

  // Adds in rank order, like Group::reduce_scatter. Returns [B, T / n, D].
  at::Tensor finish() {
    for (Swap& swap : swaps_) swap.finish();
    at::Tensor sum = terms_[0].add_(terms_[1]);
    for (size_t rank = 2; rank < terms_.size(); ++rank) sum.add_(terms_[rank]);
    return sum;
  }

 private:
  static at::Tensor multiply(const at::Tensor& input, const Factor& factor, int rank, int n) {
    const at::Tensor x = sequence_piece(input, rank, n);
    at::Tensor product = at::empty({x.size(0), x.size(1), factor.columns}, x.options().dtype(factor.type));
    factor.multiply_into(product, x);
    return product;
  }

  std::vector<at::Tensor> terms_;  // [B, T / n, D] from each rank
  std::vector<Swap> swaps_;
};

nn::Operand detached(const nn::Operand& operand) { return {operand.values.detach(), operand.scales, operand.type}; }

at::Tensor weight_gradient(const nn::Parameter& parameter, const nn::Operand& output_gradient,
                           const nn::Operand& input) {
  return nn::compute_or_defer(parameter, [&parameter, dy = detached(output_gradient), x = detached(input)] {
    if (parameter.products != nullptr) return parameter.products->weight_gradient(dy, x);
    return at::mm(as_matrix(dy.values).t(), as_matrix(x.values));
  });
}

using Parameters = std::vector<const nn::Parameter*>;

double product_flops(const at::Tensor& input, const at::Tensor& weight) {
  return 2.0 * static_cast<double>(input.numel()) * static_cast<double>(weight.size(0));
}

Factor forward_factor_of(const nn::Parameter& weight, const nn::Operand& x) {
  return weight.products == nullptr ? factor_of(weight.weight.t()) : forward_factor(weight, x);
}

Factor backward_factor_of(const nn::Parameter& weight, const nn::Operand& dy) {
  return weight.products == nullptr ? factor_of(weight.weight) : backward_factor(weight, dy);
}

// Gathers the operand of the input, returns it, and computes the matmuls. Those saved from a block's first pass are
// reused.
at::Tensor gather_for(const nn::Operand& piece, at::TensorList weights, const Parameters& parameters,
                      const comm::Group& group, variable_list& products) {
  const nn::SavedActivations* kept = nn::SavedActivations::current();
  const auto take_or = [&](size_t i, const at::Tensor& computed) {
    const nn::OpCall call{.kind = nn::OpCall::Kind::kProduct,
                          .weight = parameters[i],
                          .flops = product_flops(piece.values, weights[i]) * group.size()};
    return nn::saved_or_compute(call, [&] { return computed; });
  };
  products.resize(weights.size());
  std::vector<Factor> needed;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (kept != nullptr && kept->repeats()) products[i] = take_or(i, {});
    if (!products[i].defined()) needed.push_back(forward_factor_of(*parameters[i], piece));
  }
  Gathered gathered = gather_and_multiply_all(piece.values, needed, group);
  size_t next = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!products[i].defined()) products[i] = std::move(gathered.products[next++]);
    if (kept != nullptr && !kept->repeats()) products[i] = take_or(i, products[i]);
  }
  return std::move(gathered.whole);
}

// Both passes read a weight through its parameter, because its storage may be freed and refilled between them.
struct GatherAndProject : torch::autograd::Function<GatherAndProject> {
  static variable_list forward(AutogradContext* context, const at::Tensor& piece, at::TensorList weights,
                               const Parameters& parameters, const comm::Group* group) {
    variable_list products;
    const nn::Operand own = nn::recipe_of(*parameters[0]).of_input(piece);
    context->save_for_backward({gather_for(own, weights, parameters, *group, products), own.scales});
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    std::vector<int64_t> addresses;
    for (const nn::Parameter* parameter : parameters) addresses.push_back(reinterpret_cast<int64_t>(parameter));
    context->saved_data["parameters"] = addresses;
    return products;
  }

  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    const auto& group = *reinterpret_cast<const comm::Group*>(context->saved_data["group"].toInt());
    const std::vector<int64_t> addresses = context->saved_data["parameters"].toIntVector();
    const variable_list saved = context->get_saved_variables();
    const nn::Operand input{saved[0], saved[1], gradients[0].scalar_type()};
    Parameters parameters;
    std::vector<nn::Operand> dy;
    std::vector<at::Tensor> values;
    std::vector<Factor> factors;
    for (size_t i = 0; i < gradients.size(); ++i) {
      parameters.push_back(reinterpret_cast<const nn::Parameter*>(addresses[i]));
      dy.push_back(nn::recipe_of(*parameters[i]).of_gradient(gradients[i]));
      values.push_back(dy[i].values);
      if (context->needs_input_grad(0)) factors.push_back(backward_factor_of(*parameters[i], dy[i]));
    }
    std::optional<SumInFlight> sum;
    if (context->needs_input_grad(0)) sum.emplace(values, factors, group);
    variable_list results(1);
    for (size_t i = 0; i < gradients.size(); ++i) {
      results.push_back(context->needs_input_grad(i + 1) ? weight_gradient(*parameters[i], dy[i], input)
                                                         : at::Tensor());
    }
    if (sum) results[0] = sum->finish();
    results.resize(results.size() + 2);
    return results;
  }
};

struct ProductAndScatter : torch::autograd::Function<ProductAndScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const nn::Parameter* parameter, const comm::Group* group) {
    const nn::Operand x = nn::recipe_of(*parameter).of_input(input);
    context->save_for_backward({x.values, x.scales});
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["parameter"] = reinterpret_cast<int64_t>(parameter);
    const nn::OpCall call{.kind = nn::OpCall::Kind::kProduct,
                          .weight = parameter,
                          .scatters = true,
                          .flops = product_flops(input, weight)};
    return nn::saved_or_compute(
        call, [&] { return SumInFlight({x.values}, {forward_factor_of(*parameter, x)}, *group).finish(); });
  }

  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    const auto& group = *reinterpret_cast<const comm::Group*>(context->saved_data["group"].toInt());
    const auto& parameter = *reinterpret_cast<const nn::Parameter*>(context->saved_data["parameter"].toInt());
    const variable_list saved = context->get_saved_variables();
    const nn::Operand dy = nn::recipe_of(parameter).of_gradient(gradients[0]);
    Gathered gathered = gather_and_multiply_all(dy.values, {backward_factor_of(parameter, dy)}, group);
    at::Tensor own;
    if (context->needs_input_grad(1)) {
      own = weight_gradient(parameter, {gathered.whole, dy.scales, dy.type}, {saved[0], saved[1], dy.type});
    }
    return {std::move(gathered.products[0]), std::move(own), {}, {}};
  }
};

std::vector<at::Tensor> project_alike(const at::Tensor& piece, const Parameters& parameters, const comm::Group& group) {
  std::vector<at::Tensor> weights;
  for (const nn::Parameter* parameter : parameters) weights.push_back(parameter->weight);
  return GatherAndProject::apply(piece, at::TensorList(weights), parameters, &group);
}

// Consecutive parameters with the same recipe share the gathered operand.
std::vector<at::Tensor> project(const at::Tensor& piece, const Parameters& parameters, const comm::Group& group) {
  std::vector<at::Tensor> results;
  for (auto first = parameters.begin(); first != parameters.end();) {
    const auto last = std::find_if(first, parameters.end(),
                                   [&](const nn::Parameter* one) { return one->products != (*first)->products; });
    for (at::Tensor& result : project_alike(piece, Parameters(first, last), group))
      results.push_back(std::move(result));
    first = last;
  }
  return results;
}

// Adds the adapter's output to a matmul of the gathered input. It gathers the few columns of a piece's product with A
// instead of the input.
at::Tensor gathered_and_adapted(const at::Tensor& product, const at::Tensor& piece, const nn::Parameter& weight,
                                const comm::Group& group) {
  if (!weight.adapter) return product;
  const nn::Adapter& adapter = *weight.adapter;
  const at::Tensor narrow = comm::gather(nn::matrix_product(piece, *adapter.a), /*dim=*/1, group);
  return product.add(nn::matrix_product(narrow, *adapter.b), adapter.scale);
}

}  // namespace

nn::Projections async_all_gather_matmuls(const comm::Group& group) {
  return [&group](const at::Tensor& piece, const std::vector<const nn::Linear*>& layers) {
    Parameters parameters;
    for (const nn::Linear* layer : layers) {
      TORCH_CHECK(!layer->product && !layer->seams.input && !layer->seams.output, layer->weight().fqn,
                  ": its matmul cannot be overlapped with the gather of its input");
      parameters.push_back(&layer->weight());
    }
    std::vector<at::Tensor> results = project(piece, parameters, group);
    for (size_t i = 0; i < layers.size(); ++i) {
      results[i] = gathered_and_adapted(results[i], piece, *parameters[i], group);
      if (layers[i]->bias() != nullptr) results[i] = results[i] + layers[i]->bias()->weight;
    }
    return results;
  };
}

nn::Linear::Product async_all_gather_matmul(const comm::Group& group) {
  return [&group](const at::Tensor& piece, const nn::Parameter& weight) {
    return gathered_and_adapted(project(piece, {&weight}, group)[0], piece, weight, group);
  };
}

nn::Linear::Product async_matmul_reduce_scatter(const comm::Group& group) {
  return [&group](const at::Tensor& input, const nn::Parameter& weight) {
    const at::Tensor product = ProductAndScatter::apply(input, weight.weight, &weight, &group);
    if (!weight.adapter) return product;
    const nn::Adapter& adapter = *weight.adapter;
    const at::Tensor narrow = scatter_sum(nn::matrix_product(input, *adapter.a), /*dim=*/1, group);
    return product.add(nn::matrix_product(narrow, *adapter.b), adapter.scale);
  };
}

}  // namespace titan::parallel
