#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// torch's text form of a schedule: a row per rank, a cell per step; "0F3" is the forward pass of stage 0 for microbatch
// 3, I an input gradient, W a weight gradient, B both; "(0F7;7B2)OVERLAP_F_B" a pair. Empty cells are pauses in
// torch's drawing and mean nothing here; so do its cells for transfers and parameters (2SEND_F1, 3RECV_B0, 1UNSHARD,
// 1RESHARD), which follow from the order of work. Reductions (2REDUCE_GRAD) go behind a stage's last weight gradient
// when a row has none of them. Ranks, stages, microbatches and placement follow from the cells.
// Row r is rank r - 1. Errors: InvalidArgument naming row and column (from 1): cells that mean nothing, and all that
// check() and simulate() find.
absl::StatusOr<Schedule> parse_csv(const std::string& text);

// The same in the form that torch reads ("compute_only"): parse_csv(to_csv(schedule)) has the same steps.
std::string to_csv(const Schedule& schedule);

}  // namespace titan::pipeline
