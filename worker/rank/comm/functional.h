#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/rank/comm/group.h"

// Collectives as autograd functions. In a group of one rank each returns its input. The group must outlive the graph.
// The names describe the forward pass; the backward pass depends on how the result is used:
// - "partial" use: each rank computes something different with the result, so gradients are summed.
// - use by all "alike": all ranks continue with the same computation, so each already has the whole gradient.
// Shapes are given for dim 0 of a group of `size` ranks; dims other than `dim` do not change.
namespace titan::comm {

// Concatenates the ranks' pieces [n, ...] along `dim` to [size * n, ...], for partial use. Backward: reduce-scatter
// along `dim`.
at::Tensor gather(const at::Tensor& piece, int64_t dim, const Group& group);

// Concatenates the ranks' pieces [n, ...] along `dim` to [size * n, ...], for use by all alike. Backward: this rank's
// piece.
at::Tensor gather_alike(const at::Tensor& piece, int64_t dim, const Group& group);

// Sums `partial` [size * n, ...] over ranks and returns this rank's piece [n, ...] along `dim`. Backward: all-gather.
at::Tensor reduce_scatter(const at::Tensor& partial, int64_t dim, const Group& group);

// Sums `partial` [...] over ranks and returns the sum [...], for use by all alike. Backward: identity.
at::Tensor all_reduce(const at::Tensor& partial, const Group& group);

// Returns `whole` [...], which all ranks hold, for partial use. Forward: identity. Backward: all-reduce.
at::Tensor fan_out(const at::Tensor& whole, const Group& group);

// Returns this rank's piece [n, ...] along `dim` of `whole` [size * n, ...], which all ranks hold. Backward:
// all-gather.
at::Tensor take_piece(const at::Tensor& whole, int64_t dim, const Group& group);

}  // namespace titan::comm
