#include "worker/parallel/expert_exchange.h"

#include <numeric>
#include <utility>

#include "worker/nn/kept_results.h"
#include "worker/nn/moe_rows.h"
#include "worker/parallel/flight.h"

namespace titan::parallel {
namespace {

// sent[r] rows go to rank r, received[r] come from it.
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

// The one place where host and device meet: both sides' counts come in one copy, which is what a block keeps.
std::pair<std::vector<int64_t>, std::vector<int64_t>> exchange_counts(const at::Tensor& counts, int64_t rows,
                                                                      const comm::Group& group) {
  const at::Tensor sides = nn::kept_or({.kind = nn::OpCall::Kind::kExchange}, [&] {
    at::Tensor received = at::empty_like(counts);
    group.all_to_all(received, counts).wait();
    const at::Tensor both = at::cat({counts, received});
    return both.is_meta() ? both : both.to(at::kCPU);
  });
  if (counts.is_meta()) return {nn::counts_on_host(counts, rows), nn::counts_on_host(counts, rows)};
  const std::vector<int64_t> both = nn::counts_on_host(sides, 2 * rows);
  const auto middle = both.begin() + counts.numel();
  return {std::vector<int64_t>(both.begin(), middle), std::vector<int64_t>(middle, both.end())};
}

at::Tensor to_experts_and_back(const at::Tensor& sorted, const at::Tensor& counts, const nn::Experts& experts,
                               const std::function<void()>& meanwhile, const comm::Group& group) {
  const auto [to_each, from_each] = exchange_counts(counts, sorted.size(0), group);
  const std::vector<int64_t> sent = sums_by_rank(to_each, group.size());
  const std::vector<int64_t> received = sums_by_rank(from_each, group.size());
  const Move to_experts = move_rows(group, sent, received), to_tokens = move_rows(group, received, sent);
  const auto there = c10::make_intrusive<Flight>(to_experts, to_tokens);
  const auto back = c10::make_intrusive<Flight>(to_tokens, to_experts);
  const at::Tensor arriving = begin_flight(sorted, there);
  meanwhile();
  at::Tensor rows = finish_flight(arriving, there);
  const Regrouping regrouping = regroup(from_each, group.size(), sorted.device());
  if (regrouping.order.defined()) rows = nn::permute_rows(rows, regrouping.order, regrouping.inverse);
  rows = experts.forward(rows, nn::group_rows(regrouping.rows, rows, experts.biased()));
  if (regrouping.order.defined()) rows = nn::permute_rows(rows, regrouping.inverse, regrouping.order);
  return finish_flight(begin_flight(rows, back), back);
}

}  // namespace

Regrouping regroup(const std::vector<int64_t>& received, int ranks, at::Device device) {
  const int64_t experts = static_cast<int64_t>(received.size()) / ranks;
  Regrouping result;
  result.rows.assign(experts, 0);
  for (size_t i = 0; i < received.size(); ++i) result.rows[static_cast<int64_t>(i) % experts] += received[i];
  if (experts == 1) return result;

  // Segment (expert, rank) moves as a whole: each of its rows by the same distance.
  const int64_t total = std::accumulate(received.begin(), received.end(), int64_t{0});
  std::vector<int64_t> arrived_at(received.size());  // First row of segment [rank][expert].
  std::exclusive_scan(received.begin(), received.end(), arrived_at.begin(), int64_t{0});
  std::vector<int64_t> lengths, back(received.size());
  std::vector<int64_t> forth;
  int64_t target = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t segment = rank * experts + expert;
      lengths.push_back(received[segment]);
      forth.push_back(arrived_at[segment] - target);
      back[segment] = target - arrived_at[segment];
      target += received[segment];
    }
  }
  const auto options = at::TensorOptions(at::kLong);
  const auto moved = [&](const std::vector<int64_t>& distance, const std::vector<int64_t>& length) {
    if (device.is_meta()) return at::empty({total}, options.device(device));
    const at::Tensor steps = at::tensor(distance, options).to(device);
    return at::arange(total, options.device(device)) +
           at::repeat_interleave(steps, at::tensor(length, options).to(device), 0, total);
  };
  result.order = moved(forth, lengths);
  result.inverse = moved(back, received);
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

}  // namespace titan::parallel
