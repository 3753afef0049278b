#pragma once

#include <cstdint>
#include <string>

#include "common/plan/models/model_spec.h"

namespace titan::testing {

// Draws a small decoder of four layers, heads and two key-value heads with a random choice of every option that
// families of decoders differ in. Seeds give the same decoder everywhere. About one in five has experts, and one in
// eight latent attention.
models::ModelSpec random_options(uint64_t seed);

// Returns the options that are set, for messages: "norm_placement=both logit_softcap=5 ...".
std::string options_of(const models::ModelSpec& spec);

}  // namespace titan::testing
