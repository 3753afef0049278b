#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/shards/manifest.h"

namespace titan::tools {

// Which model a command line names. Empty: it does not say.
struct ModelChoice {
  std::string name;
  std::string flavor;
  std::string library;  // That brings it.
};

// The model that the step in `path` holds, by its own word or, where it has none, by the command line's; a choice may
// repeat it. Errors: InvalidArgument (a choice is needed), FailedPrecondition (the step holds another one).
absl::StatusOr<models::ModelSpec> model_of(const std::string& path, const checkpoint::Manifest& manifest,
                                           const ModelChoice& choice);

}  // namespace titan::tools
