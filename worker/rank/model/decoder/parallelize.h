#pragma once

#include "absl/status/status.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/model/model.h"

namespace titan::model {

// Splits a decoder that is still without values over the tensor, expert and context axes of a mesh: the one place that
// says which of its layers is split how. InvalidArgument names the numbers that do not divide.
absl::Status parallelize_decoder(Model& model, const models::ModelSpec& spec, const ParallelOptions& options);

}  // namespace titan::model
