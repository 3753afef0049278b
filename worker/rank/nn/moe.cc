#include "worker/rank/nn/moe.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <utility>

#include "worker/rank/kernels/cpu/router.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/moe_rows.h"
#include "worker/rank/nn/own_kernels.h"

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

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// DeepSeek's node-limited routing: only experts of the strongest groups can be chosen. DeepSeek-V3, with sigmoid
// scores, ranks groups by the sum of their two best scores. DeepSeek-V2, with softmax, ranks them by the best one.
at::Tensor limit_to_groups(const at::Tensor& scores, const RouterOptions& router) {
  const at::Tensor grouped = scores.unflatten(1, {router.num_groups, -1});
  const at::Tensor strength = router.softmax ? grouped.amax(-1) : std::get<0>(grouped.topk(2, -1)).sum(-1);
  const at::Tensor kept = std::get<1>(strength.topk(router.limited_groups, -1, /*largest=*/true, /*sorted=*/false));
  const at::Tensor left_out = at::ones_like(strength, at::kBool).scatter_(1, kept, false);
  return grouped.masked_fill(left_out.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(1);
}

at::Tensor choose(const at::Tensor& scores, const at::Tensor& bias, const RouterOptions& router) {
  at::NoGradGuard no_grad;
  if (router.force_balance) {
    const int64_t choices = scores.size(0) * router.top_k;
    const at::Tensor round_robin = at::arange(choices, scores.options().dtype(at::kLong)).remainder(router.num_experts);
    return round_robin.view({-1, router.top_k});
  }
  at::Tensor preferred = bias.defined() ? scores + bias : scores;
  if (router.num_groups > 0) preferred = limit_to_groups(preferred, router);
  return std::get<1>(preferred.topk(router.top_k, -1, /*largest=*/true, /*sorted=*/false));
}

at::Tensor score_all(const at::Tensor& logits, const RouterOptions& router) {
  const at::Tensor wide = logits.to(accumulate_type(logits.scalar_type()));
  return router.softmax ? at::softmax(wide, 1) : at::sigmoid(wide);
}

// Returns the gate values of the chosen experts, from the scores of all.
at::Tensor gate_values(const at::Tensor& all_scores, const at::Tensor& experts, const RouterOptions& router) {
  at::Tensor scores = all_scores.gather(1, experts);
  if (router.route_norm) scores = scores / (scores.sum(-1, /*keepdim=*/true) + 1e-20);
  if (router.route_scale != 1) scores = scores * router.route_scale;
  return scores;
}

// Computes gate_values(). The forward pass uses LibTorch, because a kernel's scores would differ in their last bits,
// which may decide the choice when a bias is added. The backward pass uses Titan's kernel, which computes the scores
// again from the logits in bf16, so that only the logits and the choice are saved.
struct OwnGateValues : torch::autograd::Function<OwnGateValues> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& all_scores,
                            const at::Tensor& experts, const RouterOptions& router) {
    context->save_for_backward({logits, experts});
    context->saved_data["softmax"] = router.softmax;
    context->saved_data["normalized"] = router.route_norm;
    context->saved_data["scale"] = router.route_scale;
    return gate_values(all_scores, experts, router);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor logits = rows_of(saved[0]), experts = saved[1].contiguous(), dscores = gradients[0].contiguous();
    const at::Tensor dlogits = uninitialized(logits.sizes(), logits.options());
    check_accepted(kernels::router_backward(*kernels::chosen_level(),
                                            {.tokens = logits.size(0),
                                             .experts = logits.size(1),
                                             .top_k = experts.size(1),
                                             .type = kernels::Dtype::kBf16,
                                             .logits = logits.const_data_ptr(),
                                             .stride = logits.stride(0),
                                             .softmax = context->saved_data["softmax"].toBool(),
                                             .normalized = context->saved_data["normalized"].toBool(),
                                             .scale = static_cast<float>(context->saved_data["scale"].toDouble()),
                                             .chosen = experts.const_data_ptr<int64_t>(),
                                             .dscores = dscores.const_data_ptr<float>(),
                                             .dlogits = dlogits.mutable_data_ptr(),
                                             .dlogits_stride = dlogits.size(1),
                                             .threads = at::get_num_threads()}));
    return {dlogits, {}, {}, {}};
  }
};

bool own_router_takes(const at::Tensor& logits, const RouterOptions& router) {
  return can_use_cpu_kernels(logits) && router.num_experts <= kernels::kMaxExperts &&
         router.top_k <= kernels::kMaxChoices;
}

}  // namespace

Routing MixtureOfExperts::route(const at::Tensor& tokens) const {
  const RouterOptions& router = options_.router;
  const at::Tensor logits = gate.forward(tokens);
  const bool own = own_router_takes(logits, router);
  const at::Tensor all_scores = score_all(own ? logits.detach() : logits, router);
  Routing routing;
  routing.experts = choose(all_scores, expert_bias->value, router);
  routing.scores = own ? OwnGateValues::apply(logits, all_scores, routing.experts, router)
                       : gate_values(all_scores, routing.experts, router);
  const at::Tensor chosen = routing.experts.reshape({-1});
  routing.counts = at::zeros({router.num_experts}, chosen.options()).scatter_add_(0, chosen, at::ones_like(chosen));
  return routing;
}

}  // namespace titan::nn
