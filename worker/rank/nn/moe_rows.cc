#include "worker/rank/nn/moe_rows.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "worker/rank/kernels/cpu/expert_rows.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const int64_t* indices(const at::Tensor& x) { return x.const_data_ptr<int64_t>(); }
const float* weights_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

// Returns x[from] along dim 0.
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& from) {
  if (!can_use_cpu_kernels(x)) return x.index_select(0, from);
  const at::Tensor rows = rows_of(x).contiguous();
  at::Tensor y = uninitialized({from.size(0), rows.size(1)}, rows.options());
  check_accepted(kernels::gather_rows(*kernels::chosen_level(), {.count = y.size(0),
                                                                 .width = y.size(1),
                                                                 .x = rows.const_data_ptr(),
                                                                 .from = indices(from),
                                                                 .y = y.mutable_data_ptr(),
                                                                 .threads = at::get_num_threads()}));
  return y;
}

// Sums rows[places] over each line of places [n, choices], weighted by scores of the same shape if defined.
at::Tensor own_sum(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& scores) {
  const at::Tensor x = rows.contiguous(), weights = scores.defined() ? scores.contiguous() : scores;
  at::Tensor y = uninitialized({places.size(0), x.size(1)}, x.options());
  compute_rows<kernels::SumRows>(x, kernels::sum_rows,
                                 {.tokens = places.size(0),
                                  .choices = places.size(1),
                                  .width = x.size(1),
                                  .x = x.const_data_ptr(),
                                  .places = indices(places),
                                  .weights = weights_or_null(weights),
                                  .y = y.mutable_data_ptr(),
                                  .threads = at::get_num_threads()});
  return y;
}

// Computes the gradients of own_sum(): returns the scores' gradient, and writes the rows' to `rows_gradient` if it is
// defined.
at::Tensor own_sum_backward(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& scores,
                            const at::Tensor& gradient, const at::Tensor& rows_gradient) {
  const at::Tensor x = rows.contiguous(), dy = gradient.contiguous(), weights = scores.contiguous();
  at::Tensor scores_gradient = uninitialized(scores.sizes(), scores.options());
  compute_rows<kernels::SumRowsBackward>(x, kernels::sum_rows_backward,
                                         {.tokens = places.size(0),
                                          .choices = places.size(1),
                                          .width = x.size(1),
                                          .x = x.const_data_ptr(),
                                          .places = indices(places),
                                          .weights = weights.const_data_ptr<float>(),
                                          .dy = dy.const_data_ptr(),
                                          .dx = rows_gradient.defined() ? rows_gradient.mutable_data_ptr() : nullptr,
                                          .dweights = scores_gradient.mutable_data_ptr<float>(),
                                          .threads = at::get_num_threads()});
  return scores_gradient;
}

// Most numbers that are gathered and widened at once. Rows are cut into pieces only if they would take gigabytes.
constexpr int64_t kPiece = int64_t{1} << 26;

// Calls work(first, count) for pieces of `count` items, each of `width` numbers.
template <typename Work>
void in_pieces(int64_t count, int64_t width, const Work& work) {
  const int64_t step = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, width));
  for (int64_t first = 0; first < count; first += step) work(first, std::min(step, count - first));
}

// Computes own_sum() by LibTorch's operations.
at::Tensor plain_sum(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& scores) {
  const auto sum = [&](int64_t first, int64_t tokens) {
    const at::Tensor of_tokens = places.narrow(0, first, tokens);
    at::Tensor terms = rows.index_select(0, of_tokens.reshape({-1}));
    if (scores.defined()) terms = terms.to(scores.scalar_type());
    terms = terms.view({tokens, places.size(1), rows.size(1)});
    if (scores.defined()) terms.mul_(scores.narrow(0, first, tokens).unsqueeze(2));
    return terms.sum(1).to(rows.scalar_type());
  };
  const int64_t tokens = places.size(0), width = places.size(1) * rows.size(1);
  if (tokens * width <= kPiece) return sum(0, tokens);
  at::Tensor sums = at::empty({tokens, rows.size(1)}, rows.options());
  in_pieces(tokens, width,
            [&](int64_t first, int64_t count) { sums.narrow(0, first, count).copy_(sum(first, count)); });
  return sums;
}

// Computes own_sum_backward() by LibTorch's operations, in the order of the rows. `tokens` holds each row's token.
at::Tensor plain_sum_backward(const at::Tensor& rows, const at::Tensor& tokens, const at::Tensor& places,
                              const at::Tensor& scores, const at::Tensor& gradient, at::Tensor& rows_gradient) {
  const at::Tensor choices = places.reshape({-1});
  at::Tensor weights = at::empty({rows.size(0), 1}, scores.options()), products = at::empty_like(weights);
  weights.view({-1}).scatter_(0, choices, scores.reshape({-1}));
  in_pieces(rows.size(0), rows.size(1), [&](int64_t first, int64_t count) {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, count); };
    at::Tensor dy = gradient.index_select(0, part(tokens)).to(scores.scalar_type());
    at::Tensor to_rows = part(rows_gradient), to_weights = part(products);
    at::mul_out(to_rows, dy, part(weights));
    at::sum_out(to_weights, dy.mul_(part(rows)), at::IntArrayRef{1}, /*keepdim=*/true);
  });
  return products.view({-1}).index_select(0, choices).view(scores.sizes());
}

// Sums rows[places] over the choices, weighted if scores are defined.
at::Tensor sum_of_choices(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& scores) {
  if (places.size(1) == 1 && !scores.defined()) return take_rows(rows, places.select(1, 0));
  return can_use_row_kernels(rows, kernels::TrainingPart::kModel) ? own_sum(rows, places, scores)
                                                                  : plain_sum(rows, places, scores);
}

struct Spread : torch::autograd::Function<Spread> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& tokens,
                            const at::Tensor& places) {
    context->save_for_backward({places});
    return take_rows(x, tokens);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor places = context->get_saved_variables()[0];
    return {sum_of_choices(gradients[0], places, {}), {}, {}};
  }
};

// Spreads and scales rows in one pass. The unscaled rows are neither made nor saved, but read again from the tokens.
struct OwnWeightedSpread : torch::autograd::Function<OwnWeightedSpread> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& scores,
                            const at::Tensor& order, const at::Tensor& tokens, const at::Tensor& places) {
    context->save_for_backward({x, scores, places});
    return own_sum(x, tokens.unsqueeze(1), scores.reshape({-1}).index_select(0, order));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &scores = saved[1], &places = saved[2], &dy = gradients[0];
    // A score's gradient is the product of its sorted row's gradient and its token, as own_sum_backward() computes for
    // combined rows.
    return {own_sum(dy, places, scores), own_sum_backward(dy, places, scores, x, {}), {}, {}, {}};
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
    if (!scores.defined()) return {take_rows(dy, tokens), {}, {}, {}};
    at::Tensor rows_gradient = at::empty(rows.sizes(), rows.options());
    at::Tensor scores_gradient = can_use_row_kernels(rows, kernels::TrainingPart::kModel)
                                     ? own_sum_backward(rows, places, scores, dy, rows_gradient)
                                     : plain_sum_backward(rows, tokens, places, scores, dy, rows_gradient);
    return {rows_gradient, scores_gradient, {}, {}};
  }
};

struct PermuteRows : torch::autograd::Function<PermuteRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& order,
                            const at::Tensor& inverse) {
    context->save_for_backward({inverse});
    return take_rows(x, order);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {take_rows(gradients[0], context->get_saved_variables()[0]), {}, {}};
  }
};

ExpertOrder sort_by_expert(const at::Tensor& experts) {
  const int64_t choices = experts.size(1);
  ExpertOrder order;
  order.rows = std::get<1>(at::sort(experts.reshape({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false));
  order.tokens = choices == 1 ? order.rows : at::div(order.rows, choices, "floor");
  at::Tensor places = at::empty_like(order.rows);
  places.scatter_(0, order.rows, at::arange(order.rows.size(0), order.rows.options()));
  order.places = places.view({-1, choices});
  return order;
}

}  // namespace

ExpertOrder order_by_expert(const at::Tensor& experts, int64_t num_experts) {
  if (!experts.is_cpu() || !kernels::chosen_level()) return sort_by_expert(experts);
  const at::Tensor chosen = experts.contiguous();
  const int64_t choices = chosen.size(1);
  ExpertOrder order;
  order.rows = uninitialized({chosen.numel()}, chosen.options());
  order.tokens = choices == 1 ? order.rows : at::empty_like(order.rows);
  order.places = at::empty_like(chosen);
  const bool in_range = kernels::order_rows({.tokens = chosen.size(0),
                                             .choices = choices,
                                             .experts = num_experts,
                                             .chosen = indices(chosen),
                                             .rows = order.rows.mutable_data_ptr<int64_t>(),
                                             .row_tokens = order.tokens.mutable_data_ptr<int64_t>(),
                                             .places = order.places.mutable_data_ptr<int64_t>()});
  TORCH_CHECK(in_range, "router: a token chose an expert outside [0, ", num_experts, ")");
  return order;
}

at::Tensor spread(const at::Tensor& x, const at::Tensor& scores, const ExpertOrder& order) {
  if (scores.defined() && can_use_row_kernels(x, kernels::TrainingPart::kModel)) {
    return OwnWeightedSpread::apply(x, scores, order.rows, order.tokens, order.places);
  }
  at::Tensor sorted = Spread::apply(x, order.tokens, order.places);
  if (!scores.defined()) return sorted;
  return ScaleRows::apply(sorted, permute_rows(scores.reshape({-1}), order.rows, order.places.view({-1})));
}

at::Tensor combine(const at::Tensor& rows, const at::Tensor& scores, const ExpertOrder& order) {
  const std::optional<at::Tensor> weights = scores.defined() ? std::make_optional(scores) : std::nullopt;
  return Combine::apply(rows, weights, order.tokens, order.places);
}

at::Tensor permute_rows(const at::Tensor& x, const at::Tensor& order, const at::Tensor& inverse) {
  return PermuteRows::apply(x, order, inverse);
}

}  // namespace titan::nn
