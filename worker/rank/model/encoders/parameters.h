#pragma once

// Gives an encoder's parameters their values. All functions take whole or sharded parameters, because a value depends
// only on files, seed and place.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/model/encoders/frozen_weights.h"
#include "worker/rank/nn/block.h"

namespace titan::encoders {

// Where whole parameters are held, and in which type they are computed: fp32, bf16 or fp64.
struct Placement {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

// InvalidArgument for a type in which encoders do not compute.
absl::Status check_dtype(at::ScalarType dtype);

// Returns rows `values` [rows, ...] of a parameter in the form in which it is held: uint8 [rows, packed_row] if it is
// packed, else [rows, ...] in `dtype`.
at::Tensor held_form(const nn::Parameter& parameter, const at::Tensor& values, at::ScalarType dtype);

// Reads all parameters. Holds at most one parameter in addition to what it fills. Errors: those of FrozenWeights,
// before any value is read if the files do not fit; InvalidArgument for another type.
absl::Status load(const FrozenWeights& weights, const std::vector<nn::Parameter*>& parameters,
                  const Placement& placement);

// Draws all parameters from their initial distributions: the same values on every rank and in every placement, apart
// from rounding. They are for tests of a whole job without weights (training.test_mode).
absl::Status draw(uint64_t seed, const std::vector<nn::Parameter*>& parameters, const Placement& placement);

// Gives all parameters the shapes and types of such values, for dry runs.
absl::Status allocate(const std::vector<nn::Parameter*>& parameters, const Placement& placement);

}  // namespace titan::encoders
