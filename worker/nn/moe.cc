#include "worker/nn/moe.h"

#include <utility>

#include "worker/nn/grouped_product.h"
#include "worker/nn/moe_rows.h"
#include "worker/nn/swiglu.h"

namespace titan::nn {
Experts::Experts(const Declare& declare, const std::string& fqn, const MoeOptions& options)
    : swiglu_limit_(options.swiglu_limit) {
  const int64_t count = options.router.num_experts, dim = options.dim, hidden = options.hidden;
  const auto add = [&](const char* name, std::vector<int64_t> shape, const Init& init) {
    parameters.push_back(&declare(fqn + "." + name, std::move(shape), init));
    parameters.back()->expert = true;
  };
  if (biased()) {
    add("mlp1_weight", {count, 2 * hidden, dim}, options.w1_init);
    add("mlp1_bias", {count, 2 * hidden}, options.bias_init);
    add("mlp2_weight", {count, dim, hidden}, options.w2_init);
    add("mlp2_bias", {count, dim}, options.bias_init);
  } else {
    add("w1", {count, hidden, dim}, options.w1_init);
    add("w2", {count, dim, hidden}, options.w2_init);
    add("w3", {count, hidden, dim}, options.w3_init);
  }
}

at::Tensor Experts::forward(const at::Tensor& x, const std::vector<int64_t>& rows) const {
  const RowGroups groups = group_rows(rows, x, /*with_members=*/biased());
  if (biased()) {
    const at::Tensor wide = grouped_product(x, *parameters[0], parameters[1], 1, groups);
    return grouped_product(clamped_swiglu(wide, swiglu_limit_), *parameters[2], parameters[3], partial_bias_factor,
                           groups);
  }
  const at::Tensor wide = swiglu(grouped_product(x, *parameters[0], nullptr, 1, groups),
                                 [&] { return grouped_product(x, *parameters[2], nullptr, 1, groups); });
  return grouped_product(wide, *parameters[1], nullptr, 1, groups);
}

MixtureOfExperts::MixtureOfExperts(const Declare& declare, Buffer& expert_bias, const std::string& fqn,
                                   const MoeOptions& options)
    : experts(declare, fqn + ".experts", options),
      gate(declare, fqn + ".router.gate.weight", options.dim, options.router.num_experts, options.gate_init,
           options.gate_bias ? &options.bias_init : nullptr),
      expert_bias(&expert_bias),
      options_(options),
      fqn_(fqn) {
  if (options.shared_hidden > 0) {
    shared_experts.emplace(declare, fqn + ".shared_experts", options.dim, options.shared_hidden, options.shared_w1_init,
                           options.shared_depth_init);
  }
}

at::Tensor MixtureOfExperts::forward(const at::Tensor& input, bool counting) const {
  const at::Tensor x = through(seams.input, input);
  const at::Tensor tokens = through(routed_seams.input, x.reshape({-1, options_.dim}));
  const Routing routing = route(tokens);
  if (counting && !routing.counts.is_meta()) {
    tokens_per_expert = tokens_per_expert.defined() ? tokens_per_expert.add_(routing.counts) : routing.counts.clone();
  }
  const ExpertOrder order = order_by_expert(routing.experts, options_.router.num_experts);
  at::Tensor sorted = spread(tokens, options_.score_before_experts ? routing.scores : at::Tensor(), order);
  at::Tensor shared;
  const auto run_shared_experts = [&] {
    if (shared_experts) shared = shared_experts->forward(x);
  };
  at::Tensor routed;
  if (dispatch) {
    routed = dispatch(sorted, routing.counts, experts, run_shared_experts);
  } else {
    run_shared_experts();
    routed = experts.forward(sorted, counts_on_host(routing.counts, sorted.size(0)));
  }
  sorted.reset();
  routed = combine(routed, options_.score_before_experts ? at::Tensor() : routing.scores, order);
  const at::Tensor output = through(routed_seams.output, routed).view(x.sizes());
  return through(seams.output, shared.defined() ? output + shared : output);
}

std::vector<int64_t> counts_on_host(const at::Tensor& counts, int64_t rows) {
  const int64_t groups = counts.numel();
  std::vector<int64_t> result(groups);
  if (counts.is_meta()) {
    for (int64_t i = 0; i < groups; ++i) result[i] = rows * (i + 1) / groups - rows * i / groups;
  } else {
    const at::Tensor local = counts.to(at::kCPU).contiguous();
    std::copy_n(local.const_data_ptr<int64_t>(), groups, result.begin());
  }
  return result;
}

}  // namespace titan::nn
