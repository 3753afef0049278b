#pragma once

// torchtune's own names of a model's parameters, under which its FullModelTorchTuneCheckpointer and
// DistributedCheckpointer keep them (0.6.1). The numbers are those of torchtitan: rotary pairs lie side by side in
// both.

#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/plan/models/model_spec.h"

namespace titan::tools {

// Whether these are names of torchtune's.
bool are_torchtune_names(const std::set<std::string>& names);

// FailedPrecondition when torchtune has no such model: of the families here it has Llama 3.
absl::Status check_torchtune_has(const models::ModelSpec& spec);

// A parameter's name there.
std::string torchtune_name(const std::string& fqn);

}  // namespace titan::tools
