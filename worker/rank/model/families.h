#pragma once

#include "absl/status/statusor.h"
#include "common/plan/models/families.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"
#include "worker/rank/model/objective.h"

// Declares the functions of each family's folder apart from its flavors: how a model is built and how its Hugging Face
// weights are named.
#define TITAN_CODE_OF(family)                                                              \
  namespace titan::model::family {                                                         \
  absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options); \
  HfFamily hf();                                                                           \
  }
TITAN_MODEL_FAMILIES(TITAN_CODE_OF)
#undef TITAN_CODE_OF

#define TITAN_OBJECTIVE_OF(family)                                     \
  namespace titan::model::family {                                     \
  std::unique_ptr<Objective> objective(const models::ModelSpec& spec); \
  }
TITAN_OTHER_OBJECTIVES(TITAN_OBJECTIVE_OF)
#undef TITAN_OBJECTIVE_OF
