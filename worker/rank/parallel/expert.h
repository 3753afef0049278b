#pragma once

#include "common/plan/mesh/mesh.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/moe.h"
#include "worker/rank/parallel/tensor.h"

// Expert parallelism (GShard, arXiv 2006.16668): experts are dealt over the ranks of mesh::Axis::kExpert, tokens travel
// to them and back.
//
// Where the tensor axis stands (t ranks on it, e on the expert axis):
//   experts also cut (no expert parallelism, or expert_tensor_parallel_degree = t): all tensor ranks route the same
//     tokens and compute parts of every expert. Input and output of the sub-block are gathered and reduced once, for
//     routed and shared experts together.
//   tensor ranks on the expert axis (expert_tensor_parallel_degree = 1): each routes tokens of its own: with sequence
//     parallelism those that it holds, and routed experts need no tensor collective; without it, an equal piece of the
//     flattened tokens.
//
// Collectives of one layer and microbatch on one rank, with n tokens routed here, k choices, N rows received, a row of
// dim elements:
//   ep by all-to-all, forward: all_to_all of the counts (8 bytes an expert), of n k rows, and of N rows back
//   ep by all-to-all, backward: all_to_all of n k rows and of N rows; the gathering of counts is not repeated
//   ep by all-gather, forward: all_gather of e n k choices (8 bytes), of as many scores and of e n rows, reduce_scatter
//     of e n rows
//   ep by all-gather, backward: all_gather of e n rows, reduce_scatter of e n rows and of e n k scores
//   tp, experts also cut, forward and backward each: one all_gather and one reduce_scatter of [B, T, dim] with sequence
//     parallelism, else one all_reduce
//   tp, tensor ranks on the expert axis: with sequence parallelism nothing for routed experts, and as a feed-forward
//     of their own for shared ones; without it one all_reduce in each pass with shared experts (their sum and the
//     routed pieces together), one all_gather in each pass with none
// A layer that is recomputed repeats the forward line, except for ep's where it keeps results by operation. By
// all-to-all the host waits for the device once, to read the counts; by all-gather never.
//
// Products: rows of experts here (all of a rank's routed rows, or N with expert parallelism, also where tensors have
// room for more) times 3 dim hidden / cut (fused form: the same), the gate on n tokens, shared experts as a
// feed-forward. The gate's gradient is a part on every tensor rank: either each routed other tokens, or each saw a part
// of every expert's output.
namespace titan::parallel {

// Whether the tensor ranks route different tokens: expert_tensor_parallel_degree 1 beside both other axes.
bool tensor_ranks_route_apart(const mesh::Mesh& mesh);

// How tokens and experts meet: parallelism.expert_parallel_dispatcher.
enum class ExpertDispatcher {
  kAllToAll,   // Rows travel to their experts (expert_dispatch.h).
  kAllGather,  // Tokens travel to all expert ranks (expert_dispatch.h).
};

// Cuts experts, shared experts and router for the mesh's tensor, expert and expert-tensor axes and sets the seams. The
// sub-block's input and output are as TensorParallel says. The mesh must have a group for kExpert where that axis is
// above one, and outlive the layer.
void split_experts(nn::MixtureOfExperts& moe, const comm::DeviceMesh& mesh, const TensorParallel& tensor,
                   ExpertDispatcher dispatcher = ExpertDispatcher::kAllToAll);

}  // namespace titan::parallel
