#pragma once

// Answers the controller's questions about ranks from the files of their run folder: diagnoses and traces.

#include <string>
#include <vector>

#include "common/rank_protocol/beacon.h"
#include "worker/node/core/values.h"

namespace titan::daemon {

// What each rank has left in `rank_folder` of its collectives, and its stacks as the shim had them taken into
// `run_folder`; one message a rank, of which the last says so. What is missing is named. Reads files: not on the loop.
std::vector<v1::Diagnosis> answer_diagnosis(const node::AnswerDiagnosis& question, const std::string& run_folder,
                                            const std::string& rank_folder);

// Traces on demand (docs/worker-protocols.md). Asks the rank for a trace by its beacon, or says how far it is, with a
// piece of its file in the run folder once it is written. Reads files: not on the loop.
void answer_trace(const node::AnswerTrace& question, const std::string& run_folder, v1::TraceData* answer);

// To a request that names no job or no trace.
v1::TraceData refuse_trace(const v1::ReadTrace& request);

// Grows with whatever the rank does.
int64_t progress_of(const rank_protocol::BeaconPage& page);

}  // namespace titan::daemon
