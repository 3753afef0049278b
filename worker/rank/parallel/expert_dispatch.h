#pragma once

// Tokens reach the ranks that hold their experts by all-to-all (exchange_tokens) or by all-gather (gather_tokens). Both
// are built on AsyncExchange: rows that are waited for later than they begin to move, in both passes.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/moe.h"

namespace titan::parallel {

// Sends every row to the rank of `group` that has its expert, runs the experts there and brings the outputs back. While
// the rows are on their way, `meanwhile` runs; in the backward pass their gradients' way back overlaps its backward
// pass. The group must outlive the graph.
nn::MixtureOfExperts::Dispatch exchange_tokens(const comm::Group& group);

// The rows that arrive from all ranks, [rank][expert] one after the other, in the order [expert][rank], and back.
struct Regrouping {
  std::vector<int64_t> rows;  // Of each local expert, from all ranks.
  at::Tensor counts;          // The same, int64 on the device.
  at::Tensor order;           // int64 [sum]: where each regrouped row came from; undefined: nothing moves.
  at::Tensor inverse;
};
// received[rank * experts + expert] rows each, and the same numbers `there`, int64 on the rows' device, which makes the
// orders of them: nothing is copied to it, and nothing waits for it.
Regrouping regroup(const std::vector<int64_t>& received, const at::Tensor& there, int ranks);

// Gathers every rank's tokens [n, dim] and choices on all ranks of `group`, runs on each the experts that it has, and
// adds up over the ranks what they made, each rank having the sums of its own tokens. Every size follows from n, which
// must be the same on all ranks: the host never asks how many tokens chose whom, and none is dropped. A token travels
// to a rank once however many of its experts are there; rows of experts have room for all that can come, ranks * n *
// min(choices, local experts), and those that did not come belong to no expert.
//
// While the tokens are on their way `meanwhile` runs, and in the backward pass its backward pass. The group must
// outlive the graph.
nn::MixtureOfExperts::Dispatch gather_tokens(const comm::Group& group);

// What the choices of any tokens are to the rank that has the experts `first` and on, `local` of `all`.
struct LocalChoices {
  at::Tensor experts;  // int64 [n, min(choices, local)]: from 0, and `local` for an expert that is elsewhere.
  at::Tensor scores;   // As `experts`: what they count.
};
// experts int64 [n, choices], a token's all different, and their scores.
LocalChoices local_choices(const at::Tensor& experts, const at::Tensor& scores, int64_t first, int64_t local,
                           int64_t all);

// Starts an exchange of `rows` and returns the tensor that holds its result once `pending` was waited for.
using Move = std::function<at::Tensor(const at::Tensor& rows, comm::Pending& pending)>;

// One exchange: how rows are sent, and how their gradients come back. Autograd runs the nodes made last first: what is
// computed between begin and finish is differentiated between the two as well. In a second pass that has the rows of
// the first one (worker/rank/nn/saved_activations.h) nothing is sent forward.
struct AsyncExchange : torch::CustomClassHolder {
  AsyncExchange(Move forth, Move back) : forth(std::move(forth)), back(std::move(back)) {}

  const Move forth, back;
  comm::Pending pending;
  at::Tensor returning;  // The gradients on their way back.
};

// The arriving rows, not to be read before finish(). Between the two calls may lie other exchanges, in the same order
// on all ranks.
at::Tensor begin_exchange(const at::Tensor& rows, const c10::intrusive_ptr<AsyncExchange>& exchange);
at::Tensor finish_exchange(const at::Tensor& arriving, const c10::intrusive_ptr<AsyncExchange>& exchange);

}  // namespace titan::parallel
