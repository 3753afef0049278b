#pragma once

#include <string>

#include "common/rank_protocol/beacon.h"
#include "worker/node/core/values.h"

namespace titan::daemon {

// Asks the rank for a trace, or says how far it is, with a piece of it once it is written. Reads files: not on the
// loop.
void answer_trace(const node::AnswerTrace& question, const std::string& run_folder, v1::TraceData* answer);

// To a request that names no job or no trace.
v1::TraceData refuse_trace(const v1::ReadTrace& request);

// Grows with whatever the rank does.
int64_t progress_of(const rank_protocol::BeaconPage& page);

}  // namespace titan::daemon
