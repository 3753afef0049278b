#include "worker/rank/parallel/expert_dispatch.h"

#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "worker/rank/device/host_waits.h"
#include "worker/rank/nn/moe_rows.h"
#include "worker/rank/nn/saved_activations.h"

namespace titan::parallel {
namespace {

// Sends sent[r] rows to rank r and receives received[r] rows from it.
Move move_rows(const comm::Group& group, const std::vector<int64_t>& sent, const std::vector<int64_t>& received) {
  return [ranks = &group, sent, received](const at::Tensor& rows, comm::Pending& pending) {
    std::vector<int64_t> shape = rows.sizes().vec();
    shape[0] = std::accumulate(received.begin(), received.end(), int64_t{0});
    at::Tensor result = at::empty(shape, rows.options());
    pending = ranks->all_to_all(result, rows.contiguous(), received, sent);
    return result;
  };
}

std::vector<int64_t> sums_by_rank(const std::vector<int64_t>& counts, int ranks) {
  const size_t experts = counts.size() / ranks;
  std::vector<int64_t> sums(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto first = counts.begin() + static_cast<int64_t>(rank * experts);
    sums[rank] = std::accumulate(first, first + static_cast<int64_t>(experts), int64_t{0});
  }
  return sums;
}

// Rows of each expert, flattened from [rank][expert].
struct Counts {
  std::vector<int64_t> sent, received;
  at::Tensor received_there;  // int64 [ranks * experts] on the rows' device.
};

// Returns the counts of both sides. This is the dispatch's only wait of the host for the device, for one copy. A
// recomputed block saves the copy and its source.
Counts exchange_counts(const at::Tensor& counts, int64_t rows, const comm::Group& group) {
  const std::vector<at::Tensor> sides = nn::saved_or_compute({.kind = nn::OpCall::Kind::kExchange}, {}, [&] {
    at::Tensor received = at::empty_like(counts);
    group.all_to_all(received, counts).wait();
    const at::Tensor both = at::cat({counts, received});
    if (both.is_meta() || both.is_cpu()) return std::vector<at::Tensor>{both};
    const device::AllowHostWaitGuard wait;
    return std::vector<at::Tensor>{both.to(at::kCPU), both};
  });
  const at::Tensor received = sides.back().narrow(0, counts.numel(), counts.numel());
  if (counts.is_meta()) return {nn::counts_on_host(counts, rows), nn::counts_on_host(counts, rows), received};
  const std::vector<int64_t> both = nn::counts_on_host(sides.front(), 2 * rows);
  const auto middle = both.begin() + counts.numel();
  return {std::vector<int64_t>(both.begin(), middle), std::vector<int64_t>(middle, both.end()), received};
}

at::Tensor to_experts_and_back(const at::Tensor& sorted, const at::Tensor& counts, const nn::Experts& experts,
                               const std::function<void()>& meanwhile, const comm::Group& group) {
  const Counts exchanged = exchange_counts(counts, sorted.size(0), group);
  const std::vector<int64_t> sent = sums_by_rank(exchanged.sent, group.size());
  const std::vector<int64_t> received = sums_by_rank(exchanged.received, group.size());
  const Move to_experts = move_rows(group, sent, received), to_tokens = move_rows(group, received, sent);
  const auto there = c10::make_intrusive<AsyncExchange>(to_experts, to_tokens);
  const auto back = c10::make_intrusive<AsyncExchange>(to_tokens, to_experts);
  const at::Tensor arriving = begin_exchange(sorted, there);
  meanwhile();
  at::Tensor rows = finish_exchange(arriving, there);
  const ExpertPermutation regrouping = permute_by_expert(exchanged.received, exchanged.received_there, group.size());
  if (regrouping.order.defined()) rows = nn::permute_rows(rows, regrouping.order, regrouping.inverse);
  rows = experts.forward(rows, nn::group_rows(regrouping.rows, rows, experts.biased(), regrouping.counts));
  if (regrouping.order.defined()) rows = nn::permute_rows(rows, regrouping.inverse, regrouping.order);
  return finish_exchange(begin_exchange(rows, back), back);
}

}  // namespace

ExpertPermutation permute_by_expert(const std::vector<int64_t>& received, const at::Tensor& there, int ranks) {
  const int64_t experts = static_cast<int64_t>(received.size()) / ranks;
  ExpertPermutation result;
  result.rows.assign(experts, 0);
  for (size_t i = 0; i < received.size(); ++i) result.rows[static_cast<int64_t>(i) % experts] += received[i];
  const at::Tensor by_rank = there.view({ranks, experts});
  result.counts = by_rank.sum(0);
  if (experts == 1) return result;

  const int64_t total = std::accumulate(received.begin(), received.end(), int64_t{0});
  if (there.is_meta()) {
    result.order = result.inverse = at::empty({total}, there.options());
    return result;
  }
  // A segment (expert, rank) moves as a whole: all its rows move by the same distance.
  const auto by_expert = [&](const at::Tensor& of_segments) { return of_segments.view_as(by_rank).t().reshape({-1}); };
  const at::Tensor lengths = by_expert(there);
  const at::Tensor from = by_expert(there.cumsum(0).sub_(there)), to = lengths.cumsum(0).sub_(lengths);
  const at::Tensor places = at::arange(total, there.options());
  result.order = at::repeat_interleave(from - to, lengths, /*dim=*/0, total).add_(places);
  result.inverse = at::empty_like(places).scatter_(0, result.order, places);
  return result;
}

nn::MixtureOfExperts::Dispatch exchange_tokens(const comm::Group& group) {
  return [ranks = &group](const nn::MixtureOfExperts& moe, const at::Tensor& tokens, const nn::Routing& routing,
                          const std::function<void()>& meanwhile) {
    return moe.in_order(tokens, routing.experts, routing.scores, moe.num_experts(), [&](const at::Tensor& sorted) {
      return to_experts_and_back(sorted, routing.counts, moe.experts, meanwhile, *ranks);
    });
  };
}

namespace {

// Gathers each rank's [n, ...] to [ranks * n, ...].
at::Tensor start_gather(const at::Tensor& piece, comm::Pending& pending, const comm::Group& group) {
  std::vector<int64_t> shape = piece.sizes().vec();
  shape[0] *= group.size();
  at::Tensor whole = at::empty(shape, piece.options());
  pending = group.all_gather(whole, piece.contiguous());
  return whole;
}

// Sums the ranks' [ranks * n, ...] and scatters the sum: [n, ...] on each rank.
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
  return nn::saved_or_compute({.kind = nn::OpCall::Kind::kExchange}, [&] {
    comm::Pending pending;
    at::Tensor all = start_gather(experts, pending, group);
    pending.wait();
    return all;
  });
}

// Returns the number of tokens of each of `local` experts, int64 [local]. Experts elsewhere are not counted.
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
  // The remainder moves experts before `first` to the end, so exactly the local experts are below `local`.
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

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void remember(AutogradContext* context, const c10::intrusive_ptr<AsyncExchange>& exchange) {
  context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
}

c10::intrusive_ptr<AsyncExchange> exchange_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<AsyncExchange>(context->saved_data["exchange"].toCapsule());
}

struct Begin : torch::autograd::Function<Begin> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<AsyncExchange>& exchange) {
    remember(context, exchange);
    return nn::saved_or_compute({.kind = nn::OpCall::Kind::kExchange},
                                [&] { return exchange->forth(rows, exchange->pending); });
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    const auto exchange = exchange_of(context);
    exchange->pending.wait();
    return {std::exchange(exchange->returning, at::Tensor()), {}};
  }
};

struct Finish : torch::autograd::Function<Finish> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<AsyncExchange>& exchange) {
    remember(context, exchange);
    exchange->pending.wait();
    return rows;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto exchange = exchange_of(context);
    exchange->returning = exchange->back(gradients[0], exchange->pending);
    return {std::move(gradients[0]), {}};  // Has the arrived rows' shape for autograd. Begin returns the gradient.
  }
};

}  // namespace

at::Tensor begin_exchange(const at::Tensor& rows, const c10::intrusive_ptr<AsyncExchange>& exchange) {
  return Begin::apply(rows, exchange);
}

at::Tensor finish_exchange(const at::Tensor& arriving, const c10::intrusive_ptr<AsyncExchange>& exchange) {
  return Finish::apply(arriving, exchange);
}

}  // namespace titan::parallel
