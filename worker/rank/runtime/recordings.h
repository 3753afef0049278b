#pragma once

#include <memory>

#include "worker/rank/runtime/failure/flight_dump.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Starts to record this rank's collectives (context.recorder): the newest also in its run folder, and what is left of
// them in the dump folder when the attempt fails. Null: it keeps no records.
std::shared_ptr<FlightDump> start_recordings(RankContext& context);

// `failure` with the name of the file, where there is one. `dump` may be null.
Failure name_recordings(const std::shared_ptr<FlightDump>& dump, Failure failure, Reporter& reporter);

}  // namespace titan::runtime
