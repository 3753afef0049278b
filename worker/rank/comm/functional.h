#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/rank/comm/group.h"

// Collectives as autograd functions. In a group of one, each returns its input. The group must outlive the graph. Named
// for the forward pass; what the backward pass does follows from who computes what with the result:
// "partial" means that each rank computes with the result something of its own, so that gradients are summed;
// "alike" means that all ranks go on with the same computation, so that each already has the whole gradient.
namespace titan::comm {

// Concatenates the ranks' pieces along `dim`, for partial use. Backward: reduce-scatter along `dim`.
at::Tensor gather(const at::Tensor& piece, int64_t dim, const Group& group);

// Concatenates the ranks' pieces along `dim`, for use by all alike. Backward: this rank's piece.
at::Tensor gather_alike(const at::Tensor& piece, int64_t dim, const Group& group);

// This rank's piece along `dim` of the sum over ranks. Backward: all-gather.
at::Tensor reduce_scatter(const at::Tensor& partial, int64_t dim, const Group& group);

// The sum over ranks, for use by all alike. Backward: identity.
at::Tensor all_reduce(const at::Tensor& partial, const Group& group);

// A tensor that all ranks hold, for partial use. Forward: identity. Backward: all-reduce.
at::Tensor fan_out(const at::Tensor& whole, const Group& group);

// This rank's piece along `dim` of a tensor that all ranks hold. Backward: all-gather.
at::Tensor take_piece(const at::Tensor& whole, int64_t dim, const Group& group);

}  // namespace titan::comm
