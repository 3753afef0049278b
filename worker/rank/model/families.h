#pragma once

#include "absl/status/statusor.h"
#include "common/plan/models/families.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"

// What the folder of each family has beside its flavors: how a model is put together, and how its Hugging Face weights
// are named.
#define TITAN_CODE_OF(family)                                                              \
  namespace titan::model::family {                                                         \
  absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options); \
  HfFamily hf();                                                                           \
  }
TITAN_MODEL_FAMILIES(TITAN_CODE_OF)
#undef TITAN_CODE_OF
