#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/shards/manifest.h"

namespace titan::tools {

// The model that a command line names. Empty: not given.
struct ModelChoice {
  std::string name;
  std::string flavor;
  std::string library;  // Library that has the model.
};

// Returns the model of the step in `path`, as recorded in the step or, if it is not, as chosen on the command line. The
// choice may repeat the record. Errors: InvalidArgument (a choice is needed), FailedPrecondition (the step holds
// another model).
absl::StatusOr<models::ModelSpec> model_of(const std::string& path, const checkpoint::Manifest& manifest,
                                           const ModelChoice& choice);

}  // namespace titan::tools
