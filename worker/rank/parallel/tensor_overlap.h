#pragma once

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/layers.h"

// Asynchronous tensor parallelism: the all-gather before a matmul and the reduce-scatter after one are split into one
// piece of the sequence per rank. A piece is in flight while another piece is multiplied, in the forward and the
// backward pass. The backward pass of gather-and-multiply is multiply-and-scatter, and vice versa. Sums over ranks are
// added in rank order.
//
// Gathering or scattering [B, T, D] over n ranks takes, on each rank, n - 1 sends and n - 1 receives of [B, T / n, D]
// instead of one collective. A weight gradient is one matmul over all tokens, as without overlap. In a split backward
// pass it waits in the queue (nn::compute_or_defer).
//
// Matmuls follow their weights' recipes: the operand of an input, or of the gradient of a layer's output, is sent, with
// eight bits per element if one scale holds for all ranks' pieces. Weights whose recipe differs from their neighbours'
// need a separate gather.
//
// All of it needs [B, T / n, D] activations between sub-blocks (sequence parallelism). The group must outlive the
// graph.
namespace titan::parallel {

// Computes several layers' outputs [B, T, out] from one input, of which each rank has [B, T / n, dim].
nn::Projections async_all_gather_matmuls(const comm::Group& group);

// Same for one layer.
nn::Linear::Product async_all_gather_matmul(const comm::Group& group);

// Maps [B, T, in / n] to this rank's piece [B, T / n, out] of the sum of the ranks' matmuls.
nn::Linear::Product async_matmul_reduce_scatter(const comm::Group& group);

}  // namespace titan::parallel
