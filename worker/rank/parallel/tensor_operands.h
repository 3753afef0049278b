#pragma once

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/layers.h"

// Tensor parallelism that gathers the operands of matmuls (torchao's float8 tensor parallelism). If the recipe has one
// scale for all ranks' pieces of an operand, each rank quantises its own piece and eight bits per element are sent: the
// input of a first layer in the forward pass, and the output gradient of a last layer in the backward pass. Sums over
// ranks are not quantised. Weights without such a recipe are computed as with seams that gather and scatter.
//
// Activations between sub-blocks are [B, T / n, D] (sequence parallelism). The group must outlive the graph.
namespace titan::parallel {

// Computes several layers' outputs [B, T, out] from one input, of which each rank has [B, T / n, dim]. Consecutive
// layers with the same recipe share the gathered operand.
nn::Projections operand_all_gather_matmuls(const comm::Group& group);

// Same for one layer.
nn::Linear::Product operand_all_gather_matmul(const comm::Group& group);

// Maps [B, T, in / n] to this rank's piece [B, T / n, out] of the sum of the ranks' matmuls.
nn::Linear::Product operand_matmul_reduce_scatter(const comm::Group& group);

}  // namespace titan::parallel
