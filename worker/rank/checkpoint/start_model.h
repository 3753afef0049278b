#pragma once

#include <string>

#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/checkpointer.h"

namespace titan::checkpoint {

// Rank 0, before the model is built: `spec` with the numbers of the weights that a load will most likely begin with
// (see keeps_to_weights). `taken` says which differ and where they come from; it stays empty where none does. Looks at
// names, a manifest or a config.json. What it cannot read changes nothing, and the load says why.
models::ModelSpec model_of_start(const Setup& setup, const models::ModelSpec& spec, std::string& taken);

}  // namespace titan::checkpoint
