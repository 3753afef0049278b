#include "worker/rank/nn/moe.h"

#include <utility>

#include "worker/rank/nn/grouped_product.h"
#include "worker/rank/nn/moe_rows.h"
#include "worker/rank/nn/swiglu.h"

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

at::Tensor Experts::forward(const at::Tensor& x, const RowGroups& groups) const {
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
  at::Tensor shared;
  const auto run_shared_experts = [&] {
    if (shared_experts) shared = shared_experts->forward(x);
  };
  const at::Tensor routed = dispatch ? dispatch(*this, tokens, routing, run_shared_experts)
                                     : all_experts(tokens, routing, run_shared_experts);
  const at::Tensor output = through(routed_seams.output, routed).view(x.sizes());
  return through(seams.output, shared.defined() ? output + shared : output);
}

at::Tensor MixtureOfExperts::all_experts(const at::Tensor& tokens, const Routing& routing,
                                         const std::function<void()>& meanwhile) const {
  return in_order(tokens, routing.experts, routing.scores, num_experts(), [&](const at::Tensor& sorted) {
    meanwhile();
    return experts.forward(sorted, group_counted_rows(routing.counts, sorted, sorted.size(0), experts.biased()));
  });
}

at::Tensor MixtureOfExperts::in_order(at::Tensor tokens, const at::Tensor& experts, const at::Tensor& scores,
                                      int64_t num_experts,
                                      const std::function<at::Tensor(const at::Tensor& sorted)>& run) const {
  const ExpertOrder order = order_by_expert(experts, num_experts);
  at::Tensor sorted = spread(tokens, options_.score_before_experts ? scores : at::Tensor(), order);
  tokens.reset();
  const at::Tensor routed = run(sorted);
  sorted.reset();
  return combine(routed, options_.score_before_experts ? at::Tensor() : scores, order);
}

}  // namespace titan::nn
