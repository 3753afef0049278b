#pragma once

// Flux in the config.json of a diffusers folder (FluxTransformer2DModel).

#include "absl/status/statusor.h"
#include "common/plan/models/flux.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// Reads the model of a config.json, with the defaults of diffusers 0.37's class for keys that it leaves out. Its flavor
// is "config.json". Errors: InvalidArgument naming the key and its value, for another class or numbers that Flux does
// not have here (a patch of more than one token, an output as wide as no input).
absl::StatusOr<models::FluxSpec> read_flux(const nlohmann::json& config);

// Returns the config.json with which diffusers opens a folder of these weights; the inverse of read_flux(). It has no
// keys for mlp_ratio, time_channels and rope_theta, for which the class has only the defaults of the spec.
nlohmann::json flux_config(const models::FluxSpec& spec);

}  // namespace titan::hf_config
