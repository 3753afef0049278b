#pragma once

#include <string>

#include "common/plan/models/model_spec.h"

namespace titan::models {

// Returns which of a decoder's options has no meaning or is not computed together with the others, "member: why", or
// "".
std::string wrong_option(const ModelSpec& spec);

}  // namespace titan::models
