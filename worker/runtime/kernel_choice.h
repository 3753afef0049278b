#pragma once

#include <string>

#include "worker/kernels/choice.h"
#include "worker/runtime/options.h"

namespace titan::runtime {

// What GPU ranks of a job compute with Titan's own kernels where it trains in bf16: compile.components while
// compile.enable is set and resources.kernels is not "reference", else nothing.
kernels::DeviceParts parts_on_gpu(const config::JobConfig& config);

// For a rank on the CPU, before it computes: its level of kernels, by resources.kernels. Throws Failure where this
// machine, `host`, lacks it. Rank 0 says what is chosen.
void choose_cpu_kernels(const RankJob& job, const std::string& host);

// For a rank on a GPU, once its device is made: parts_on_gpu. Rank 0 says what is chosen.
void choose_gpu_kernels(const RankJob& job);

}  // namespace titan::runtime
