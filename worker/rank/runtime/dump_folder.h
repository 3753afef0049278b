#pragma once

// The dump folder: rank 0 fences it for its attempt, and after a failure each rank writes the record of its last
// collectives there.

#include <memory>

#include "absl/status/status.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/failure/flight_dump.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Takes the dump folder for this attempt, on rank 0, before anything in it is read, and from then on shows that the
// holder lives. Stores in `context` what is known to have been committed there. Throws Failure.
void take_dump_folder(const RankJob& job, RankContext& context);

// Returns FailedPrecondition unless the dump folder exists and belongs to this attempt. Does not take the fence's lock,
// because all ranks would queue for it.
absl::Status has_dump_folder(const RankContext& context);

// Writes the newest attempt's configuration to {dump}/config.json, for people who inspect the folder. titanctl accepts
// it unchanged. If the disk is full, the file is missing and the job runs. Throws Failure if the folder belongs to
// another attempt.
void save_config(const RankContext& context);

// Adds to a fenced rank's failure who holds the dump folder or, if that is this job, the checkpoint folder in an object
// store.
Failure with_holder(const RankJob& job, Failure failure);

// Starts recording this rank's collectives (context.recorder). The newest are also written to its run folder as they
// are issued. When the attempt fails, all recordings are written to the dump folder. Returns null if nothing is
// recorded.
std::shared_ptr<FlightDump> start_recordings(RankContext& context);

// Returns `failure` with the name of the recorded file, if there is one. `dump` may be null.
Failure name_recordings(const std::shared_ptr<FlightDump>& dump, Failure failure, Reporter& reporter);

}  // namespace titan::runtime
