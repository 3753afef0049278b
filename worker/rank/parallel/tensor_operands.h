#pragma once

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/layers.h"

// Tensor parallelism whose gathers move what products read (torchao's float8 tensor parallelism): under a recipe with
// one scale for all ranks' pieces of an operand a rank quantises its own piece, and eight bits an element travel, of a
// first layer's input in the forward pass and of a last layer's output gradient in the backward pass. Sums over ranks
// travel as numbers. Weights without such a recipe are computed as by seams that gather and scatter.
//
// Activations between sub-blocks are [B, T / n, D] (sequence parallelism). The group must outlive the graph.
namespace titan::parallel {

// Several layers' outputs [B, T, out] of one input of which each rank has [B, T / n, dim]. Layers of one recipe that
// follow each other share what is gathered.
nn::Projections gather_operand_and_project(const comm::Group& group);

// The same for one layer.
nn::Linear::Product gather_operand_and_multiply(const comm::Group& group);

// From [B, T, in / n] to this rank's piece [B, T / n, out] of the sum of the ranks' products.
nn::Linear::Product multiply_and_scatter(const comm::Group& group);

}  // namespace titan::parallel
