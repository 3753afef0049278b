#pragma once

#include "common/plan/mesh/mesh.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/moe.h"
#include "worker/rank/parallel/tensor.h"

// Expert parallelism (GShard, arXiv 2006.16668): experts are distributed over the ranks of mesh::Axis::kExpert, and
// tokens are sent to them and back.
//
// Use of the tensor axis (t ranks on it, e on the expert axis):
//   experts also split (no expert parallelism, or expert_tensor_parallel_degree = t): all tensor ranks route the same
//     tokens and compute parts of every expert. Input and output of the sub-block are gathered and reduced once, for
//     routed and shared experts together.
//   tensor ranks on the expert axis (expert_tensor_parallel_degree = 1): each routes different tokens. With sequence
//     parallelism these are the tokens that it holds, and routed experts need no tensor collective. Without it they are
//     an equal piece of the flattened tokens.
//
// Collectives of one layer and microbatch on one rank, with n tokens routed here, k choices per token, N rows received,
// and dim elements per row:
//   ep by all-to-all, forward: all_to_all of the counts (8 bytes an expert), of n k rows, and of N rows back
//   ep by all-to-all, backward: all_to_all of n k rows and of N rows; the exchange of counts is not repeated
//   ep by all-gather, forward: all_gather of e n k choices (8 bytes), of as many scores and of e n rows, reduce_scatter
//     of e n rows
//   ep by all-gather, backward: all_gather of e n rows, reduce_scatter of e n rows and of e n k scores
//   tp, experts also split, forward and backward each: one all_gather and one reduce_scatter of [B, T, dim] with
//     sequence parallelism, otherwise one all_reduce
//   tp, tensor ranks on the expert axis: with sequence parallelism none for routed experts, and those of a feed-forward
//     for shared ones; without it one all_reduce in each pass with shared experts (their sum and the routed pieces
//     together), one all_gather in each pass without them
// A recomputed layer repeats the forward line, except for ep's where results are saved per operation. The all-to-all
// makes the host wait for the device once, to read the counts; the all-gather never does.
//
// Multiply-adds: rows of local experts (all routed rows of a rank, or N with expert parallelism, even if the tensors
// are larger) times 3 dim hidden / t if experts are split (fused form: the same), the gate on n tokens, and shared
// experts like a feed-forward. The gate's gradient on a tensor rank is a partial sum, because each rank routed other
// tokens or saw a part of every expert's output.
namespace titan::parallel {

// Returns whether the tensor ranks route different tokens: the tensor and the expert axis are larger than one and
// expert_tensor_parallel_degree is 1.
bool tensor_ranks_split_tokens(const mesh::Mesh& mesh);

// How tokens reach their experts: parallelism.expert_parallel_dispatcher.
enum class ExpertDispatcher {
  kAllToAll,   // Rows are sent to their experts (expert_dispatch.h).
  kAllGather,  // Tokens are sent to all expert ranks (expert_dispatch.h).
};

// Splits experts, shared experts and router for the mesh's tensor, expert and expert-tensor axes and sets the seams.
// TensorParallel describes the form of the sub-block's input and output. The mesh must outlive the layer and have a
// group for kExpert if that axis is larger than 1.
void split_experts(nn::MixtureOfExperts& moe, const comm::DeviceMesh& mesh, const TensorParallel& tensor,
                   ExpertDispatcher dispatcher = ExpertDispatcher::kAllToAll);

}  // namespace titan::parallel
