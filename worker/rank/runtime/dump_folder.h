#pragma once

// The dump folder: rank 0 fences it for its attempt, and each rank records there what a failed attempt leaves of its
// last collectives.

#include <memory>

#include "absl/status/status.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/failure/flight_dump.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Rank 0 takes the dump folder for this attempt, before anything in it is read, and shows from then on that it lives.
// What is known to have been committed there goes into the context. Throws Failure.
void take_dump_folder(const RankJob& job, RankContext& context);

// Whether the dump folder is there and this attempt's. Not under the fence's lock, for which all ranks would queue.
absl::Status has_dump_folder(const RankContext& context);

// Writes {dump}/config.json: the newest attempt's configuration, for users who find the folder; titanctl accepts it as
// it is. On a full disk the file is missing and the job runs. Throws Failure when the folder is another attempt's.
void save_config(const RankContext& context);

// A fenced rank says who has the folder, or else its checkpoints in an object store.
Failure with_holder(const RankJob& job, Failure failure);

// Starts to record this rank's collectives (context.recorder): the newest also in its run folder, and what is left of
// them in the dump folder when the attempt fails. Null: it keeps no records.
std::shared_ptr<FlightDump> start_recordings(RankContext& context);

// `failure` with the name of the file, where there is one. `dump` may be null.
Failure name_recordings(const std::shared_ptr<FlightDump>& dump, Failure failure, Reporter& reporter);

}  // namespace titan::runtime
