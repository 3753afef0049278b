#pragma once

// Folders of tensors, of whatever kind, as a comparison of two of them sees them.

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"
#include "worker/rank/tools/model_choice.h"

namespace titan::tools {

struct NamedTensor {
  std::string key;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  bool of_model = true;  // Else of an optimizer, or of whatever else there is.
};

class TensorFolder {
 public:
  virtual ~TensorFolder() = default;

  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  void leave_out(absl::FunctionRef<bool(const NamedTensor&)> which) { std::erase_if(tensors_, which); }
  // The box of one of them, of its type, on the CPU; little else is read. Errors name file and tensor.
  virtual absl::StatusOr<at::Tensor> read(const NamedTensor& tensor, const checkpoint::Box& box) = 0;

 protected:
  std::vector<NamedTensor> tensors_;
};

using FolderPair = std::pair<std::unique_ptr<TensorFolder>, std::unique_ptr<TensorFolder>>;

// Opens steps, folders of torch.distributed.checkpoint and Hugging Face folders. Two of one kind have their own names.
// Of two kinds both have a step's names: of a step and a torch.distributed.checkpoint folder all that torchtitan's
// names say, where a Hugging Face folder is one of them the model alone, by the names of its family. Which model that
// is the step says; without one, or with one that does not, `choice` does. Errors: InvalidArgument (a choice is
// needed), NotFound (nothing of the kind there), FailedPrecondition (it is not that model), and those of opening each.
absl::StatusOr<FolderPair> open_both(storage::Files& files, const std::string& a, const std::string& b,
                                     const ModelChoice& choice);

}  // namespace titan::tools
