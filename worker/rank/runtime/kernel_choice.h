#pragma once

#include <string>

#include "worker/rank/runtime/options.h"

namespace titan::runtime {

// For a rank on the CPU, before it computes: its level of kernels, by resources.kernels. Throws Failure where this
// machine, `host`, lacks it. Rank 0 says what is chosen.
void choose_cpu_kernels(const RankJob& job, const std::string& host);

// For a rank on a GPU, once its device is made: parts_on_gpu (runtime/step). Rank 0 says what is chosen.
void choose_gpu_kernels(const RankJob& job);

}  // namespace titan::runtime
