#include "worker/nn/grouped_product.h"

#include <ATen/ops/_grouped_mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <optional>
#include <utility>

#include "worker/nn/deferred_gradients.h"
#include "worker/nn/kept_results.h"
#include "worker/nn/products.h"

namespace titan::nn {
namespace {

// CUTLASS's grouped kernel reads bf16 whose rows begin at multiples of 16 bytes.
bool fits_grouped_kernel(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && weight.size(1) % 8 == 0 && weight.size(2) % 8 == 0;
}

// x times each group's weight [out, in], transposed or not.
at::Tensor multiply(const at::Tensor& x, const at::Tensor& weights, bool transposed, const std::vector<int64_t>& rows,
                    const at::Tensor& ends) {
  if (ends.defined() && x.size(0) > 0) return at::_grouped_mm(x, transposed ? weights.transpose(1, 2) : weights, ends);
  return transposed ? grouped_times_transposed(x, weights, rows) : grouped_times(x, weights, rows);
}

void add_bias(at::Tensor& y, const at::Tensor& bias, double factor, const std::vector<int64_t>& rows) {
  for_each_group(rows, [&](int64_t group, int64_t first, int64_t count) {
    if (count > 0) y.narrow(0, first, count).add_(bias.select(0, group), factor);
  });
}

at::Tensor bias_gradient(const at::Tensor& dy, const std::vector<int64_t>& rows) {
  at::Tensor gradient = at::empty({static_cast<int64_t>(rows.size()), dy.size(1)}, dy.options());
  for_each_group(rows, [&](int64_t group, int64_t first, int64_t count) {
    at::Tensor part = gradient.select(0, group);
    at::sum_out(part, dy.narrow(0, first, count), {0});  // Zero for no rows.
  });
  return gradient;
}

struct GroupedProduct : torch::autograd::Function<GroupedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Parameter* parameter, double bias_factor,
                            const RowGroups& groups) {
    // The leaf itself is saved: its storage may be freed and refilled between the passes.
    context->save_for_backward({x, weight, groups.ends});
    context->saved_data["rows"] = groups.rows;
    context->saved_data["parameter"] = reinterpret_cast<int64_t>(parameter);
    context->saved_data["biased"] = bias.has_value();
    const OpCall call{.kind = OpCall::Kind::kGroupedProduct,
                      .weight = parameter,
                      .flops = 2.0 * static_cast<double>(x.numel()) * static_cast<double>(weight.size(1))};
    return kept_or(call, [&] {
      at::Tensor y = multiply(x, weight, /*transposed=*/true, groups.rows, groups.ends);
      if (bias) add_bias(y, *bias, bias_factor, groups.rows);
      return y;
    });
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    torch::autograd::variable_list result(6);
    if (!gradients[0].defined()) return result;
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const std::vector<int64_t> rows = context->saved_data["rows"].toIntVector();
    const auto* parameter = reinterpret_cast<const Parameter*>(context->saved_data["parameter"].toInt());
    const at::Tensor dy = gradients[0].contiguous();
    if (context->needs_input_grad(0)) result[0] = multiply(dy, saved[1], /*transposed=*/false, rows, saved[2]);
    if (context->needs_input_grad(1)) {
      result[1] = compute_or_defer(*parameter,
                                   [dy, x = saved[0].detach(), rows] { return grouped_weight_gradient(dy, x, rows); });
    }
    if (context->saved_data["biased"].toBool()) result[2] = bias_gradient(dy, rows);
    return result;
  }
};

}  // namespace

RowGroups group_rows(std::vector<int64_t> rows, const at::Tensor& x) {
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  TORCH_CHECK(total == x.size(0), "grouped product: groups of ", total, " rows together, but ", x.size(0), " rows");
  RowGroups groups{std::move(rows), {}};
  if (x.is_cuda() && x.scalar_type() == at::kBFloat16) {
    std::vector<int64_t> ends(groups.rows.size());
    std::partial_sum(groups.rows.begin(), groups.rows.end(), ends.begin());
    groups.ends = at::tensor(ends, at::kInt).to(x.device(), /*non_blocking=*/true);
  }
  return groups;
}

at::Tensor grouped_product(const at::Tensor& x, const Parameter& weight, const Parameter* bias, double bias_factor,
                           const RowGroups& groups) {
  RowGroups usable{groups.rows, fits_grouped_kernel(x, weight.weight) ? groups.ends : at::Tensor()};
  const std::optional<at::Tensor> bias_value = bias == nullptr ? std::nullopt : std::make_optional(bias->weight);
  return GroupedProduct::apply(x.contiguous(), weight.weight, bias_value, &weight, bias_factor, usable);
}

}  // namespace titan::nn
