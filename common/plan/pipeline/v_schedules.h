#pragma once

#include <vector>

#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// The list of one rank that owns stages `rank` (its outer one) and 2 ranks - 1 - `rank` (its inner one).
// The stages go down the ranks and come back up, so that the first rank also holds the loss.
std::vector<Step> zero_bubble_v(const Schedule& shape, int rank);  // ZB-V of arXiv 2401.10241, section 6.
std::vector<Step> dual_pipe_v(const Schedule& shape, int rank);    // DualPipe of arXiv 2412.19437, folded into a V.

}  // namespace titan::pipeline
