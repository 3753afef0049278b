#include <limits>

#include "worker/nn/moe.h"

namespace titan::nn {
namespace {

// DeepSeek's node-limited routing: only experts of the groups whose two best scores sum highest can be chosen.
at::Tensor limit_to_groups(const at::Tensor& scores, const RouterOptions& router) {
  const at::Tensor grouped = scores.unflatten(1, {router.num_groups, -1});
  const at::Tensor best_two = std::get<0>(grouped.topk(2, -1)).sum(-1);
  const at::Tensor kept = std::get<1>(best_two.topk(router.limited_groups, -1, /*largest=*/true, /*sorted=*/false));
  const at::Tensor left_out = at::ones_like(best_two, at::kBool).scatter_(1, kept, false);
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

}  // namespace

Routing MixtureOfExperts::route(const at::Tensor& tokens) const {
  const RouterOptions& router = options_.router;
  const at::Tensor logits = gate.forward(tokens).to(accumulate_type(tokens.scalar_type()));
  const at::Tensor scores = router.softmax ? at::softmax(logits, 1) : at::sigmoid(logits);
  Routing routing;
  routing.experts = choose(scores, expert_bias->value, router);
  routing.scores = scores.gather(1, routing.experts);
  if (router.route_norm) routing.scores = routing.scores / (routing.scores.sum(-1, /*keepdim=*/true) + 1e-20);
  if (router.route_scale != 1) routing.scores = routing.scores * router.route_scale;
  const at::Tensor chosen = routing.experts.reshape({-1});
  routing.counts = at::zeros({router.num_experts}, chosen.options()).scatter_add_(0, chosen, at::ones_like(chosen));
  return routing;
}

}  // namespace titan::nn
