#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// Parses torch's CSV form of a schedule: a row per rank, a cell per step. "0F3" is the forward pass of stage 0 for
// microbatch 3, I an input gradient, W a weight gradient, B both; "(0F7;7B2)OVERLAP_F_B" is a pair. Empty cells, which
// are pauses in torch, are ignored. So are cells for transfers and parameters (2SEND_F1, 3RECV_B0, 1UNSHARD, 1RESHARD),
// which follow from the order of work. A row without reductions (2REDUCE_GRAD) gets one after each stage's last weight
// gradient. Ranks, stages, microbatches and placement follow from the cells.
// Row r, counted from 1, is rank r - 1. Errors: InvalidArgument naming row and column (from 1): cells that cannot be
// parsed, and everything that check() and simulate() find.
absl::StatusOr<Schedule> parse_csv(const std::string& text);

// Writes the form that torch reads ("compute_only"), without reductions: parse_csv() adds them again.
std::string to_csv(const Schedule& schedule);

}  // namespace titan::pipeline
