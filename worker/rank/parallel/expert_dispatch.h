#pragma once

// Tokens reach the ranks that hold their experts by all-to-all (exchange_tokens) or by all-gather (gather_tokens). Both
// use AsyncExchange, which separates starting a transfer from waiting for it, in both passes.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/moe.h"

namespace titan::parallel {

// Returns a dispatch that sends every row to the rank of `group` that has its expert, runs the experts there and
// returns the outputs. `meanwhile` runs while the rows are in flight. In the backward pass the return of their
// gradients overlaps the backward pass of `meanwhile`. The group must outlive the graph.
nn::MixtureOfExperts::Dispatch exchange_tokens(const comm::Group& group);

// Reorders the rows that arrive from all ranks, in the order [rank][expert], to the order [expert][rank], and back.
struct ExpertPermutation {
  std::vector<int64_t> rows;  // Rows of each local expert, from all ranks.
  at::Tensor counts;          // int64 [experts] on the device: the same numbers.
  at::Tensor order;           // int64 [sum of rows]: source index of each regrouped row. Undefined: nothing moves.
  at::Tensor inverse;         // int64 [sum of rows]: the inverse permutation.
};
// Returns the permutation of the rows that arrive from `ranks` ranks. `received`: number of rows at [rank * experts +
// expert]. `there`: the same numbers, int64 [ranks * experts] on the rows' device. The permutations are computed from
// `there`, so nothing is copied to the device and nothing waits for it.
ExpertPermutation permute_by_expert(const std::vector<int64_t>& received, const at::Tensor& there, int ranks);

// Returns a dispatch that gathers every rank's tokens [n, dim] and choices on all ranks of `group`, runs the local
// experts on each, and sums the outputs over the ranks; each rank gets the sums for its own tokens. All sizes follow
// from n, which must be the same on all ranks, so the host never reads token counts and no token is dropped. A token is
// sent to a rank once, however many of its experts are there. The experts' rows have capacity for every possible
// arrival, ranks * n * min(choices, local experts); unused rows belong to no expert.
//
// `meanwhile` runs while the tokens are in flight, and so does its backward pass in the backward pass. The group must
// outlive the graph.
nn::MixtureOfExperts::Dispatch gather_tokens(const comm::Group& group);

// The choices of a set of tokens as seen by the rank that has the `local` experts, out of `all`, that begin at `first`.
struct LocalChoices {
  at::Tensor experts;  // int64 [n, min(choices, local)]: local index, or `local` if the expert is elsewhere.
  at::Tensor scores;   // [n, min(choices, local)]: weights of these experts.
};
// Returns the choices of local experts. experts: int64 [n, choices], all different for a token. scores: [n, choices].
LocalChoices local_choices(const at::Tensor& experts, const at::Tensor& scores, int64_t first, int64_t local,
                           int64_t all);

// Starts an exchange of `rows` [n, ...] and returns the tensor [m, ...] that holds the result after `pending` is waited
// for.
using Move = std::function<at::Tensor(const at::Tensor& rows, comm::Pending& pending)>;

// One exchange: how rows are sent and how their gradients return. Autograd runs the most recently created nodes first,
// so the backward pass of what is computed between begin and finish also runs between the two. A recomputation that has
// the first pass's rows (worker/rank/nn/saved_activations.h) sends nothing forward.
struct AsyncExchange : torch::CustomClassHolder {
  AsyncExchange(Move forth, Move back) : forth(std::move(forth)), back(std::move(back)) {}

  const Move forth, back;
  comm::Pending pending;
  at::Tensor returning;  // [n, ...]: gradients of the sent rows, in flight.
};

// Starts an exchange of `rows` [n, ...] and returns the arriving rows [m, ...], which must not be read before
// finish_exchange(). Other exchanges may start between the two calls, in the same order on all ranks.
at::Tensor begin_exchange(const at::Tensor& rows, const c10::intrusive_ptr<AsyncExchange>& exchange);
// Waits for `arriving` [m, ...] and returns it.
at::Tensor finish_exchange(const at::Tensor& arriving, const c10::intrusive_ptr<AsyncExchange>& exchange);

}  // namespace titan::parallel
