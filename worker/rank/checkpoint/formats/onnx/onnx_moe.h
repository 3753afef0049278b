#pragma once

// A mixture of experts as nodes of a graph, in two exact forms.
//
// Standard operators compute every expert for every token, and multiply the results by the gate values, which are 0 for
// experts that were not chosen: num_experts / top_k times the work of training. ONNX Runtime's MoE computes only the
// chosen ones. It applies a softmax to what it gets, so it gets the logarithms of the gate values.

#include <string>

#include "worker/rank/checkpoint/formats/onnx/onnx_layers.h"

namespace titan::checkpoint::onnx {

// Appends the mixture "layers.N.moe" with its shared experts. x and the result are [B, S, dim].
std::string mixture_of_experts(const Builder& builder, const std::string& fqn, const std::string& x);

}  // namespace titan::checkpoint::onnx
