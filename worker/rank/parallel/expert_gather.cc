#include "worker/rank/parallel/expert_gather.h"

#include <utility>

#include "worker/rank/nn/kept_results.h"
#include "worker/rank/parallel/async_exchange.h"

namespace titan::parallel {
namespace {

// [n, ...] of each rank to [ranks * n, ...].
at::Tensor start_gather(const at::Tensor& piece, comm::Pending& pending, const comm::Group& group) {
  std::vector<int64_t> shape = piece.sizes().vec();
  shape[0] *= group.size();
  at::Tensor whole = at::empty(shape, piece.options());
  pending = group.all_gather(whole, piece.contiguous());
  return whole;
}

// [ranks * n, ...] of each rank to this rank's [n, ...] of their sum.
at::Tensor start_sum(const at::Tensor& partial, comm::Pending& pending, const comm::Group& group) {
  std::vector<int64_t> shape = partial.sizes().vec();
  shape[0] /= group.size();
  at::Tensor sum = at::empty(shape, partial.options());
  pending = group.reduce_scatter(sum, partial.contiguous());
  return sum;
}

Move gathering(const comm::Group& group) {
  return [ranks = &group](const at::Tensor& x, comm::Pending& pending) { return start_gather(x, pending, *ranks); };
}
Move summing(const comm::Group& group) {
  return [ranks = &group](const at::Tensor& x, comm::Pending& pending) { return start_sum(x, pending, *ranks); };
}

at::Tensor gather_choices(const at::Tensor& experts, const comm::Group& group) {
  return nn::kept_or({.kind = nn::OpCall::Kind::kExchange}, [&] {
    comm::Pending pending;
    at::Tensor all = start_gather(experts, pending, group);
    pending.wait();
    return all;
  });
}

// Tokens of each of `local` experts; those elsewhere are left out.
at::Tensor count_local(const at::Tensor& experts, int64_t local) {
  const at::Tensor flat = experts.reshape({-1});
  return at::zeros({local + 1}, flat.options()).scatter_add_(0, flat, at::ones_like(flat)).narrow(0, 0, local);
}

at::Tensor gather_and_sum(const nn::MixtureOfExperts& moe, const at::Tensor& tokens, const nn::Routing& routing,
                          const std::function<void()>& meanwhile, const comm::Group& group) {
  const int64_t local = moe.experts.local_experts();
  const auto scores_there = c10::make_intrusive<AsyncExchange>(gathering(group), summing(group));
  const auto tokens_there = c10::make_intrusive<AsyncExchange>(gathering(group), summing(group));
  const auto back = c10::make_intrusive<AsyncExchange>(summing(group), gathering(group));
  const at::Tensor chosen = gather_choices(routing.experts, group);
  const at::Tensor arriving_scores = begin_exchange(routing.scores, scores_there);
  at::Tensor all = begin_exchange(tokens, tokens_there);
  meanwhile();
  all = finish_exchange(all, tokens_there);
  const LocalChoices choices = local_choices(chosen, finish_exchange(arriving_scores, scores_there),
                                             group.rank() * local, local, moe.num_experts());
  const at::Tensor partial =
      moe.in_order(std::move(all), choices.experts, choices.scores, local + 1, [&](const at::Tensor& sorted) {
        const at::Tensor counts = count_local(choices.experts, local);
        return moe.experts.forward(
            sorted, nn::group_counted_rows(counts, sorted, routing.experts.numel(), moe.experts.biased()));
      });
  return finish_exchange(begin_exchange(partial, back), back);
}

}  // namespace

LocalChoices local_choices(const at::Tensor& experts, const at::Tensor& scores, int64_t first, int64_t local,
                           int64_t all) {
  // Ahead of the first one comes the last one: what is here is below `local`.
  const at::Tensor here = (experts - first).remainder(all).clamp_max(local);
  if (here.size(1) <= local) return {here, scores};
  const auto [sorted, order] = at::sort(here, /*stable=*/true, /*dim=*/1, /*descending=*/false);
  return {sorted.narrow(1, 0, local), scores.gather(1, order.narrow(1, 0, local))};
}

nn::MixtureOfExperts::Dispatch gather_tokens(const comm::Group& group) {
  return [ranks = &group](const nn::MixtureOfExperts& moe, const at::Tensor& tokens, const nn::Routing& routing,
                          const std::function<void()>& meanwhile) {
    return gather_and_sum(moe, tokens, routing, meanwhile, *ranks);
  };
}

}  // namespace titan::parallel
