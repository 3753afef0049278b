#include "worker/parallel/tensor_overlap.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "worker/comm/functional.h"
#include "worker/nn/deferred_gradients.h"
#include "worker/nn/kept_results.h"
#include "worker/parallel/kept_scatter.h"

namespace titan::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Piece `rank` of n along the sequence of [B, T, D].
at::Tensor sequence_piece(const at::Tensor& whole, int rank, int n) {
  const int64_t length = whole.size(1) / n;
  return whole.narrow(1, rank * length, length);
}

// The other ranks in an order in which, at each step, two ranks are each other's partner.
std::vector<int> partners(const comm::Group& group) {
  std::vector<int> order;
  for (int step = 0; step < group.size(); ++step) {
    const int partner = (step - group.rank() + group.size()) % group.size();
    if (partner != group.rank()) order.push_back(partner);
  }
  return order;
}

// One tensor to a partner and one of the same shape from it, both in flight.
class Swap {
 public:
  // The lower rank sends first: where both directions share one queue (NCCL), each operation finds its counterpart.
  Swap(const comm::Group& group, int partner, const at::Tensor& outgoing, at::Tensor incoming)
      : incoming_(std::move(incoming)) {
    if (group.rank() < partner) send_ = group.send(outgoing, partner);
    recv_ = group.recv(incoming_, partner);
    if (group.rank() > partner) send_ = group.send(outgoing, partner);
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

// out = x matrix, row by row of the batch, so that a piece of the sequence is neither read nor written through a copy.
void multiply_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& matrix) {
  for (int64_t row = 0; row < x.size(0); ++row) {
    at::Tensor target = out[row];
    at::mm_out(target, x[row], matrix);
  }
}

struct Gathered {
  at::Tensor whole;                  // [B, T, D]
  std::vector<at::Tensor> products;  // [B, T, columns] of each matrix
};

// Gathers the ranks' pieces [B, t, D] and multiplies them by matrices [D, columns].
Gathered gather_and_multiply_all(const at::Tensor& piece, const std::vector<at::Tensor>& matrices,
                                 const comm::Group& group) {
  const int n = group.size();
  const at::Tensor own = piece.contiguous();
  const int64_t batch = own.size(0), length = own.size(1);
  Gathered result{at::empty({batch, n * length, own.size(2)}, own.options()), {}};
  for (const at::Tensor& matrix : matrices) {
    result.products.push_back(at::empty({batch, n * length, matrix.size(1)}, own.options()));
  }
  const auto place = [&](int rank, const at::Tensor& arrived) {
    const at::Tensor target = sequence_piece(result.whole, rank, n);
    if (!target.is_alias_of(arrived)) target.copy_(arrived);
    for (size_t i = 0; i < matrices.size(); ++i) {
      multiply_into(sequence_piece(result.products[i], rank, n), arrived, matrices[i]);
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

// This rank's piece of a sum over ranks while the others' terms are on their way.
class SumInFlight {
 public:
  // The terms are pieces of the sum over i of inputs[i] [B, T, rows_i] times matrices[i] [rows_i, D].
  SumInFlight(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& matrices, const comm::Group& group)
      : terms_(group.size()) {
    const int n = group.size();
    TORCH_CHECK(inputs[0].size(1) % n == 0, group.name(), ": a sequence of ", inputs[0].size(1),
                " tokens does not divide by ", n, " ranks");
    const auto term = [&](int rank) {
      at::Tensor sum = multiply(inputs.back(), matrices.back(), rank, n);
      for (size_t i = inputs.size() - 1; i-- > 0;) sum.add_(multiply(inputs[i], matrices[i], rank, n));
      return sum;
    };
    for (const int partner : partners(group)) {
      const at::Tensor outgoing = term(partner);
      terms_[partner] = at::empty_like(outgoing);
      swaps_.emplace_back(group, partner, outgoing, terms_[partner]);
    }
    terms_[group.rank()] = term(group.rank());
  }

  // In rank order, as Group::reduce_scatter adds.
  at::Tensor finish() {
    for (Swap& swap : swaps_) swap.finish();
    at::Tensor sum = terms_[0].add_(terms_[1]);
    for (size_t rank = 2; rank < terms_.size(); ++rank) sum.add_(terms_[rank]);
    return sum;
  }

 private:
  static at::Tensor multiply(const at::Tensor& input, const at::Tensor& matrix, int rank, int n) {
    const at::Tensor x = sequence_piece(input, rank, n);
    at::Tensor product = at::empty({x.size(0), x.size(1), matrix.size(1)}, x.options());
    multiply_into(product, x, matrix);
    return product;
  }

  std::vector<at::Tensor> terms_;  // [B, T / n, D] of each rank
  std::vector<Swap> swaps_;
};

at::Tensor weight_gradient(const nn::Parameter& parameter, const at::Tensor& output_gradient, const at::Tensor& input) {
  return nn::compute_or_defer(parameter, [dy = output_gradient.detach(), x = input.detach()] {
    return at::mm(as_matrix(dy).t(), as_matrix(x));
  });
}

using Parameters = std::vector<const nn::Parameter*>;

double product_flops(const at::Tensor& input, const at::Tensor& weight) {
  return 2.0 * static_cast<double>(input.numel()) * static_cast<double>(weight.size(0));
}

std::vector<at::Tensor> transposed(at::TensorList weights) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& weight : weights) result.push_back(weight.t());
  return result;
}

// Gathers the input, which is returned, and computes the products; those kept from a block's first pass are taken.
at::Tensor gather_for(const at::Tensor& piece, at::TensorList weights, const Parameters& parameters,
                      const comm::Group& group, variable_list& products) {
  const nn::KeptResults* kept = nn::KeptResults::current();
  const auto take_or = [&](size_t i, const at::Tensor& computed) {
    const nn::OpCall call{.kind = nn::OpCall::Kind::kProduct,
                          .weight = parameters[i],
                          .flops = product_flops(piece, weights[i]) * group.size()};
    return nn::kept_or(call, [&] { return computed; });
  };
  products.resize(weights.size());
  std::vector<at::Tensor> needed;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (kept != nullptr && kept->repeats()) products[i] = take_or(i, {});
    if (!products[i].defined()) needed.push_back(weights[i]);
  }
  Gathered gathered = gather_and_multiply_all(piece, transposed(needed), group);
  size_t next = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!products[i].defined()) products[i] = std::move(gathered.products[next++]);
    if (kept != nullptr && !kept->repeats()) products[i] = take_or(i, products[i]);
  }
  return std::move(gathered.whole);
}

// Saves the leaves themselves: their storage may be freed and refilled between the passes.
struct GatherAndProject : torch::autograd::Function<GatherAndProject> {
  static variable_list forward(AutogradContext* context, const at::Tensor& piece, at::TensorList weights,
                               const Parameters& parameters, const comm::Group* group) {
    variable_list products;
    at::Tensor whole = gather_for(piece, weights, parameters, *group, products);
    variable_list saved{std::move(whole)};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    std::vector<int64_t> addresses;
    for (const nn::Parameter* parameter : parameters) addresses.push_back(reinterpret_cast<int64_t>(parameter));
    context->saved_data["parameters"] = addresses;
    return products;
  }

  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    const auto& group = *reinterpret_cast<const comm::Group*>(context->saved_data["group"].toInt());
    const std::vector<int64_t> addresses = context->saved_data["parameters"].toIntVector();
    variable_list saved = context->get_saved_variables();
    const at::Tensor input = saved[0];
    saved.erase(saved.begin());
    std::optional<SumInFlight> sum;
    if (context->needs_input_grad(0)) sum.emplace(gradients, saved, group);
    variable_list results(1);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto& parameter = *reinterpret_cast<const nn::Parameter*>(addresses[i]);
      results.push_back(context->needs_input_grad(i + 1) ? weight_gradient(parameter, gradients[i], input)
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
    context->save_for_backward({input, weight});
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["parameter"] = reinterpret_cast<int64_t>(parameter);
    const nn::OpCall call{.kind = nn::OpCall::Kind::kProduct,
                          .weight = parameter,
                          .scatters = true,
                          .flops = product_flops(input, weight)};
    return nn::kept_or(call, [&] { return SumInFlight({input}, {weight.t()}, *group).finish(); });
  }

  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    const auto& group = *reinterpret_cast<const comm::Group*>(context->saved_data["group"].toInt());
    const auto& parameter = *reinterpret_cast<const nn::Parameter*>(context->saved_data["parameter"].toInt());
    const variable_list saved = context->get_saved_variables();
    Gathered gathered = gather_and_multiply_all(gradients[0], {saved[1]}, group);
    at::Tensor own;
    if (context->needs_input_grad(1)) own = weight_gradient(parameter, gathered.whole, saved[0]);
    return {std::move(gathered.products[0]), std::move(own), {}, {}};
  }
};

std::vector<at::Tensor> project(const at::Tensor& piece, const Parameters& parameters, const comm::Group& group) {
  std::vector<at::Tensor> weights;
  for (const nn::Parameter* parameter : parameters) weights.push_back(parameter->weight);
  return GatherAndProject::apply(piece, at::TensorList(weights), parameters, &group);
}

// What an adapter adds to a product of the gathered input: a piece's few columns are gathered instead of the input.
at::Tensor gathered_and_adapted(const at::Tensor& product, const at::Tensor& piece, const nn::Parameter& weight,
                                const comm::Group& group) {
  if (!weight.adapter) return product;
  const nn::Adapter& adapter = *weight.adapter;
  const at::Tensor narrow = comm::gather(nn::matrix_product(piece, *adapter.a), /*dim=*/1, group);
  return product.add(nn::matrix_product(narrow, *adapter.b), adapter.scale);
}

}  // namespace

nn::Projections gather_and_project(const comm::Group& group) {
  return [&group](const at::Tensor& piece, const std::vector<const nn::Linear*>& layers) {
    Parameters parameters;
    for (const nn::Linear* layer : layers) {
      TORCH_CHECK(!layer->product && !layer->seams.input && !layer->seams.output, layer->weight().fqn,
                  ": its product cannot be overlapped with the gathering of its input");
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

nn::Linear::Product gather_and_multiply(const comm::Group& group) {
  return [&group](const at::Tensor& piece, const nn::Parameter& weight) {
    return gathered_and_adapted(project(piece, {&weight}, group)[0], piece, weight, group);
  };
}

nn::Linear::Product product_and_scatter(const comm::Group& group) {
  return [&group](const at::Tensor& input, const nn::Parameter& weight) {
    const at::Tensor product = ProductAndScatter::apply(input, weight.weight, &weight, &group);
    if (!weight.adapter) return product;
    const nn::Adapter& adapter = *weight.adapter;
    const at::Tensor narrow = scatter_sum(nn::matrix_product(input, *adapter.a), /*dim=*/1, group);
    return product.add(nn::matrix_product(narrow, *adapter.b), adapter.scale);
  };
}

}  // namespace titan::parallel
