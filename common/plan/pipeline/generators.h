#pragma once

// Generates the schedules that have a name in torch, from GPipe to the zero-bubble and DualPipe V schedules.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// One named order of work, with torch's names and meanings.
struct Kind {
  std::string name;
  Placement placement = Placement::kLoop;
  int default_stages_per_rank = 1;
  int least_stages_per_rank = 1;
  int most_stages_per_rank = 1;  // 0: any number.
  bool splits_backward = false;  // Has I and W beside B.
};

// GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV.
const std::vector<Kind>& kinds();
// Upper and lower case do not matter. Errors: InvalidArgument listing the names.
absl::StatusOr<Kind> find_kind(const std::string& name);

// The order of all ranks' work. The order alone matters: when something runs follows from what it waits for
// (simulator.h). Errors: InvalidArgument, whose message begins with the configuration key to change and says which
// values would do: an unknown name, stages per rank or microbatches that the schedule does not take.
absl::StatusOr<Schedule> generate(const std::string& name, int ranks, int stages_per_rank, int microbatches);

// Forward passes alone, over the stages of `like` where they are: for validation.
Schedule forward_only(const Schedule& like, int microbatches);

// The list of one rank that owns stages `rank` (its outer one) and 2 ranks - 1 - `rank` (its inner one).
// The stages go down the ranks and come back up, so that the first rank also holds the loss.
std::vector<Step> zero_bubble_v(const Schedule& shape, int rank);  // ZB-V of arXiv 2401.10241, section 6.
std::vector<Step> dual_pipe_v(const Schedule& shape, int rank);    // DualPipe of arXiv 2412.19437, folded into a V.

}  // namespace titan::pipeline
