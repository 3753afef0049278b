#pragma once

// What two folders of tensors have otherwise, tensor by tensor.

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/tools/model_choice.h"

namespace titan::tools {

struct DiffOptions {
  bool model_only = false;  // Leave the optimizer's state out.
  bool json = false;        // One object a tensor that differs.
  ModelChoice model = {};   // Where names have to be told from each other and no step says which model it is.
};

// Whether `a` and `b`, steps, folders of torch.distributed.checkpoint or Hugging Face folders (tensor_folder.h), hold
// the same tensors, of the same shapes, types and numbers, however they are cut. Text begins with a line that sums up
// all of them (how many differ, the largest absolute and relative difference and where) and goes on with a line for
// each tensor that differs. What
// differs in type is compared in float64, two that are no numbers are the same. Reads some millions of numbers at once.
// Errors: those of open_both() and of reading each.
absl::StatusOr<bool> diff(storage::Files& files, const std::string& a, const std::string& b, const DiffOptions& options,
                          std::ostream& out);

}  // namespace titan::tools
