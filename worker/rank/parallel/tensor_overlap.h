#pragma once

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/layers.h"

// Asynchronous tensor parallelism: the all-gather before a product and the reduce-scatter after one are cut into one
// piece of the sequence per rank, and a piece travels while another piece's product is computed, in the forward and in
// the backward pass. The backward pass of gathering and multiplying is multiplying and scattering, and the other way
// round. Sums over ranks are taken in rank order.
//
// A gathering or scattering of [B, T, D] over n ranks is, on each rank, n - 1 sends and n - 1 receptions of
// [B, T / n, D] instead of one collective. Weight gradients are one product over all tokens, as without overlap; in a
// split backward pass they wait in the queue (nn::compute_or_defer).
//
// Products follow their weights' recipes: what travels of an input, or of the gradient of a layer's output, is what
// products read of it, eight bits where one scale holds for all ranks' pieces. Weights of another recipe than their
// neighbours' are gathered for apart.
//
// All of it needs [B, T / n, D] activations between sub-blocks (sequence parallelism). The group must outlive the
// graph.
namespace titan::parallel {

// Several layers' outputs [B, T, out] of one input of which each rank has [B, T / n, dim].
nn::Projections gather_and_project(const comm::Group& group);

// The same for one layer.
nn::Linear::Product gather_and_multiply(const comm::Group& group);

// From [B, T, in / n] to this rank's piece [B, T / n, out] of the sum of the ranks' products.
nn::Linear::Product product_and_scatter(const comm::Group& group);

}  // namespace titan::parallel
