#pragma once

// What two steps have otherwise, tensor by tensor.

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "common/storage/file.h"

namespace titan::tools {

struct DiffOptions {
  bool model_only = false;  // Leave the optimizer's state out.
  bool json = false;        // One object a tensor that differs.
};

// Whether the steps `a` and `b` hold the same tensors, of the same shapes, types and numbers, however they are cut;
// says of each that differs how. What differs in type is compared in float64, two that are no numbers are the same.
// Reads some millions of numbers at once. Errors: those of reading a step.
absl::StatusOr<bool> diff(storage::Files& files, const std::string& a, const std::string& b, const DiffOptions& options,
                          std::ostream& out);

}  // namespace titan::tools
