#pragma once

// Generates the schedules that have a name in torch, from GPipe to the zero-bubble and DualPipe V schedules.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// One named schedule, with torch's name and meaning.
struct ScheduleKind {
  std::string name;
  StagePlacement placement = StagePlacement::kLoop;
  int default_stages_per_rank = 1;
  int min_stages_per_rank = 1;
  int max_stages_per_rank = 1;   // 0: any number.
  bool splits_backward = false;  // Has I and W in addition to B.
};

// Returns GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble and DualPipeV.
const std::vector<ScheduleKind>& schedule_kinds();
// Finds a kind by its name, ignoring case. Errors: InvalidArgument listing the names.
absl::StatusOr<ScheduleKind> find_schedule(const std::string& name);

// Returns the order of all ranks' work. Times follow from the order and from what each action waits for (simulator.h).
// Errors: InvalidArgument for an unknown name, or for stages per rank or microbatches that the schedule does not
// support. The message begins with the configuration key to change and names the possible values.
absl::StatusOr<Schedule> generate(const std::string& name, int ranks, int stages_per_rank, int microbatches);

// Returns forward passes only, with the stages placed as in `like`: for validation.
Schedule forward_only(const Schedule& like, int microbatches);

// Return the list of one rank, which owns stages `rank` (outer) and 2 ranks - 1 - `rank` (inner). The stages go down
// the ranks and come back up, so the first rank also holds the loss.
std::vector<ScheduleStep> zero_bubble_v(const Schedule& shape, int rank);  // ZB-V of arXiv 2401.10241, section 6.
std::vector<ScheduleStep> dual_pipe_v(const Schedule& shape,
                                      int rank);  // DualPipe of arXiv 2412.19437, folded into a V.

}  // namespace titan::pipeline
