#pragma once

#include <vector>

#include "common/plan/models/model_spec.h"

// All model families. A family consists of a line here and the folder of that name in worker/rank/model: its flavors
// (flavors.cc there, compiled without LibTorch for the planners), its code and its Hugging Face names.
#define TITAN_MODEL_FAMILIES(FAMILY) \
  FAMILY(llama3)                     \
  FAMILY(llama4)                     \
  FAMILY(deepseek_v3)                \
  FAMILY(flux)                       \
  FAMILY(qwen3)                      \
  FAMILY(gpt_oss)                    \
  FAMILY(vlm)                        \
  FAMILY(qwen3_vl)                   \
  FAMILY(mistral)                    \
  FAMILY(mixtral)                    \
  FAMILY(qwen2)                      \
  FAMILY(smollm3)                    \
  FAMILY(phi3)                       \
  FAMILY(olmo2)                      \
  FAMILY(glm4)                       \
  FAMILY(gemma2)                     \
  FAMILY(gemma3)                     \
  FAMILY(granite)

// Families that learn from more than texts. In worker/rank/model each also has a function that makes its objective.
#define TITAN_OTHER_OBJECTIVES(FAMILY) \
  FAMILY(flux)                         \
  FAMILY(vlm)                          \
  FAMILY(qwen3_vl)

namespace titan::models {

#define TITAN_FLAVORS_OF(family) std::vector<ModelSpec> family##_flavors();
TITAN_MODEL_FAMILIES(TITAN_FLAVORS_OF)
#undef TITAN_FLAVORS_OF

}  // namespace titan::models
