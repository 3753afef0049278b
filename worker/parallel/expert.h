#pragma once

#include "worker/comm/device_mesh.h"
#include "worker/nn/moe.h"
#include "worker/parallel/tensor.h"

// Expert parallelism: experts are dealt over the ranks of mesh::Axis::kExpert, tokens travel to them and back.
namespace titan::parallel {

// Cuts experts, shared experts and router for the mesh's tensor, expert and expert-tensor axes and sets the seams. The
// sub-block's input and output are as TensorParallel says. With expert_tensor_parallel 1 beside tensor parallelism the
// tensor ranks route different tokens.
void split_experts(nn::MixtureOfExperts& moe, const comm::DeviceMesh& mesh, const TensorParallel& tensor);

}  // namespace titan::parallel
