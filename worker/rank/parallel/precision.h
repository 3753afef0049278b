#pragma once

#include <ATen/ATen.h>

#include <string>

#include "absl/status/statusor.h"

namespace titan::parallel {

// Data types of one shard unit. The same policy holds on every mesh, one rank included.
struct Precision {
  at::ScalarType master = at::kFloat;  // Shards that the optimizer updates, and their gradients.
  at::ScalarType param = at::kFloat;   // Gathered weights and activations.
  at::ScalarType reduce = at::kFloat;  // Gradients on the wire.
};

// `dtype` is training.dtype: "float64" overrides the other two; "bfloat16" stores shards in bfloat16.
// Errors: InvalidArgument naming the value.
absl::StatusOr<Precision> make_precision(const std::string& dtype, const std::string& mixed_precision_param,
                                         const std::string& mixed_precision_reduce);

}  // namespace titan::parallel
