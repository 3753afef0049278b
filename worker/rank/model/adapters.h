#pragma once

#include "absl/status/status.h"
#include "common/plan/models/adapters.h"
#include "worker/rank/model/model.h"

namespace titan::model {

// Adds matrices A and B to the linear layers and experts that `adapters` selects, freezes everything else, and packs
// the weights that BaseForm::kNf4 packs. Call it after the model is parallelized: A is split like its weight along the
// inputs and B along the outputs, so the layer's own collectives serve both. InvalidArgument: no pattern matches a
// layer, or the rows of a weight cannot be packed.
absl::Status add_adapters(Model& model, const models::AdapterSpec& adapters);

}  // namespace titan::model
