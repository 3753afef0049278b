#pragma once

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/moe.h"

namespace titan::parallel {

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

}  // namespace titan::parallel
