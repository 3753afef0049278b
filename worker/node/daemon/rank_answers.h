#pragma once

// Answers the controller's requests about ranks from the files of their run folder: diagnoses and traces.

#include <string>
#include <vector>

#include "common/rank_protocol/beacon.h"
#include "worker/node/core/values.h"

namespace titan::daemon {

// Returns one message per rank, with the collectives that the rank recorded in `rank_folder` and the stacks that the
// shim wrote to `run_folder`. The last message is marked. Each says why something is missing. Reads files: do not call
// on the loop.
std::vector<v1::Diagnosis> answer_diagnosis(const node::AnswerDiagnosis& question, const std::string& run_folder,
                                            const std::string& rank_folder);

// Handles traces on demand (docs/worker-protocols.md). Requests the trace through the rank's beacon or returns its
// state, with a piece of the file in the run folder once it is written. Reads files: do not call on the loop.
void answer_trace(const node::AnswerTrace& question, const std::string& run_folder, v1::TraceData* answer);

// Returns the answer to a request that names no job or no trace.
v1::TraceData refuse_trace(const v1::ReadTrace& request);

// Returns a counter that grows with everything the rank does.
int64_t progress_of(const rank_protocol::BeaconPage& page);

}  // namespace titan::daemon
