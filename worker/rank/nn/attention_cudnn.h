#pragma once

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_plan.h"

// Attention of whole rows by cuDNN, where nothing but causality hides a key. On Hopper it takes some 0.6 of flash
// attention's time, and heads of queries and values need not be equally large (docs/benchmarks-gpu.md).
namespace titan::nn {

// Whether LibTorch would choose cuDNN for these heads here: a GPU and a version that have it, and no demand for equal
// bits, which its backward pass does not give.
bool cudnn_takes(const AttentionInput& input);

// Captures like any other work: the host reads nothing.
c10::intrusive_ptr<AttentionPlan> cudnn_plan(double scale);

}  // namespace titan::nn
