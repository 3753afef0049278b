#include "worker/nn/moe_rows.h"

#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "worker/nn/layers.h"

namespace titan::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Sum over the choices of rows[places], weighted when scores are defined. One choice at a time: the temporaries are of
// the result's size.
at::Tensor sum_of_choices(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& scores) {
  const int64_t choices = places.size(1);
  if (choices == 1 && !scores.defined()) return rows.index_select(0, places.select(1, 0));
  const at::ScalarType wide = accumulate_type(rows.scalar_type());
  at::Tensor sum;
  for (int64_t choice = 0; choice < choices; ++choice) {
    at::Tensor term = rows.index_select(0, places.select(1, choice)).to(wide);
    if (scores.defined()) term.mul_(scores.narrow(1, choice, 1));
    sum = sum.defined() ? sum.add_(term) : term;
  }
  return sum.to(rows.scalar_type());
}

struct Spread : torch::autograd::Function<Spread> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& tokens,
                            const at::Tensor& places) {
    context->save_for_backward({places});
    return x.index_select(0, tokens);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor places = context->get_saved_variables()[0];
    return {sum_of_choices(gradients[0], places, {}), {}, {}};
  }
};

struct ScaleRows : torch::autograd::Function<ScaleRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& scores) {
    context->save_for_backward({rows, scores});
    return at::mul(rows, scores.unsqueeze(1)).to(rows.scalar_type());  // Promotes to the scores' type.
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &scores = saved[1], &dy = gradients[0];
    at::Tensor products = at::mul(dy.to(scores.scalar_type()), rows);
    return {at::mul(dy, scores.unsqueeze(1)).to(rows.scalar_type()), products.sum(1)};
  }
};

struct Combine : torch::autograd::Function<Combine> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const std::optional<at::Tensor>& scores,
                            const at::Tensor& tokens, const at::Tensor& places) {
    // Only the scores' gradient reads the rows.
    context->save_for_backward({scores ? rows : at::Tensor(), scores.value_or(at::Tensor()), tokens, places});
    return sum_of_choices(rows, places, scores.value_or(at::Tensor()));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &scores = saved[1], &tokens = saved[2], &places = saved[3];
    const at::Tensor& dy = gradients[0];
    if (!scores.defined()) return {dy.index_select(0, tokens), {}, {}, {}};
    const at::Tensor wide = dy.to(scores.scalar_type());
    at::Tensor rows_gradient = at::empty(rows.sizes(), rows.options());
    at::Tensor scores_gradient = at::empty(scores.sizes(), scores.options());
    for (int64_t choice = 0; choice < places.size(1); ++choice) {
      const at::Tensor place = places.select(1, choice);
      rows_gradient.index_copy_(0, place, at::mul(wide, scores.narrow(1, choice, 1)).to(rows.scalar_type()));
      at::Tensor target = scores_gradient.select(1, choice);
      at::sum_out(target, at::mul(wide, rows.index_select(0, place)), at::IntArrayRef{1});
    }
    return {rows_gradient, scores_gradient, {}, {}};
  }
};

struct PermuteRows : torch::autograd::Function<PermuteRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& order,
                            const at::Tensor& inverse) {
    context->save_for_backward({inverse});
    return x.index_select(0, order);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0].index_select(0, context->get_saved_variables()[0]), {}, {}};
  }
};

}  // namespace

ExpertOrder order_by_expert(const at::Tensor& experts) {
  const int64_t choices = experts.size(1);
  ExpertOrder order;
  order.rows = std::get<1>(at::sort(experts.reshape({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false));
  order.tokens = choices == 1 ? order.rows : at::div(order.rows, choices, "floor");
  at::Tensor places = at::empty_like(order.rows);
  places.scatter_(0, order.rows, at::arange(order.rows.size(0), order.rows.options()));
  order.places = places.view({-1, choices});
  return order;
}

at::Tensor spread(const at::Tensor& x, const ExpertOrder& order) {
  return Spread::apply(x, order.tokens, order.places);
}

at::Tensor scale_rows(const at::Tensor& rows, const at::Tensor& scores) { return ScaleRows::apply(rows, scores); }

at::Tensor combine(const at::Tensor& rows, const at::Tensor& scores, const ExpertOrder& order) {
  const std::optional<at::Tensor> weights = scores.defined() ? std::make_optional(scores) : std::nullopt;
  return Combine::apply(rows, weights, order.tokens, order.places);
}

at::Tensor permute_rows(const at::Tensor& x, const at::Tensor& order, const at::Tensor& inverse) {
  return PermuteRows::apply(x, order, inverse);
}

}  // namespace titan::nn
