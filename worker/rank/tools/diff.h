#pragma once

// Compares two folders of tensors, tensor by tensor.

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/tools/model_choice.h"

namespace titan::tools {

struct DiffOptions {
  bool model_only = false;  // Ignores the optimizer's state.
  bool json = false;        // Prints one object per differing tensor.
  ModelChoice model = {};   // Needed if names must be translated and no step records the model.
};

// Returns whether `a` and `b` hold the same tensors with the same shapes, types and values, however they are split.
// They are steps, folders of torch.distributed.checkpoint or Hugging Face folders (tensor_folder.h). Text output begins
// with a summary (how many tensors differ, the largest absolute and relative difference and where), followed by a line
// per differing tensor. Tensors of different types are compared in float64, and two NaNs are equal. Reads a few million
// elements at once. Errors: those of open_both() and of reading each.
absl::StatusOr<bool> diff(storage::Files& files, const std::string& a, const std::string& b, const DiffOptions& options,
                          std::ostream& out);

}  // namespace titan::tools
