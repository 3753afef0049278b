#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "worker/rank/kernels/cpu/router.h"
#include "worker/rank/nn/moe.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// DeepSeek's node-limited routing: only experts of the strongest groups can be chosen. Generation 3, whose scores are
// sigmoids, ranks groups by the sum of their two best scores; generation 2, softmax, by the best one.
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

// What the chosen experts count, from the scores of all.
at::Tensor gate_values(const at::Tensor& all_scores, const at::Tensor& experts, const RouterOptions& router) {
  at::Tensor scores = all_scores.gather(1, experts);
  if (router.route_norm) scores = scores / (scores.sum(-1, /*keepdim=*/true) + 1e-20);
  if (router.route_scale != 1) scores = scores * router.route_scale;
  return scores;
}

// The same numbers, which LibTorch computes here too: the kernel's scores differ in their last bits, and among sums
// with a bias these may decide who is chosen. The backward pass is the kernel's: it computes the scores again from the
// logits in bf16, so that they and the choice are all that is kept.
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
    took(kernels::router_backward(*kernels::chosen_level(),
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
  return own_kernels_take(logits) && router.num_experts <= kernels::kMostExperts &&
         router.top_k <= kernels::kMostChoices;
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
