#pragma once

#include "absl/status/status.h"
#include "common/plan/models/adapters.h"
#include "worker/rank/model/model.h"

namespace titan::model {

// Gives the linear layers and experts that `adapters` names their matrices A and B and freezes everything else, packing
// what BaseForm::kNf4 packs. After the model was parallelized: each matrix is cut as its layer's weight was, A along
// its inputs and B along its outputs, so that the layer's own collectives serve both. InvalidArgument: a pattern names
// no layer, or rows that cannot be packed.
absl::Status add_adapters(Model& model, const models::AdapterSpec& adapters);

}  // namespace titan::model
