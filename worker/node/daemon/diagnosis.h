#pragma once

#include <string>
#include <vector>

#include "worker/node/core/values.h"

namespace titan::daemon {

// What each rank has left in `rank_folder` of its collectives, and its stacks as the shim had them taken into
// `run_folder`; one message a rank, of which the last says so. What is missing is named. Reads files: not on the loop.
std::vector<v1::Diagnosis> answer_diagnosis(const node::AnswerDiagnosis& question, const std::string& run_folder,
                                            const std::string& rank_folder);

}  // namespace titan::daemon
