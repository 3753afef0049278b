#pragma once

// Folders of tensors of any kind, for comparing two of them.

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
  bool of_model = true;  // False: of an optimizer or anything else.
};

class TensorFolder {
 public:
  virtual ~TensorFolder() = default;

  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  void remove_tensors(absl::FunctionRef<bool(const NamedTensor&)> which) { std::erase_if(tensors_, which); }
  // Returns a box of a listed tensor, `[box.shape...]` in the tensor's type, on the CPU. Reads little else. Errors name
  // file and tensor.
  virtual absl::StatusOr<at::Tensor> read(const NamedTensor& tensor, const checkpoint::Box& box) = 0;

 protected:
  std::vector<NamedTensor> tensors_;
};

using FolderPair = std::pair<std::unique_ptr<TensorFolder>, std::unique_ptr<TensorFolder>>;

// Opens steps, folders of torch.distributed.checkpoint and Hugging Face folders. Two folders of one kind keep their
// names. Two of different kinds both get a step's names: a step and a torch.distributed.checkpoint folder for
// everything that torchtitan's names cover; with a Hugging Face folder only the model, by its family's names. A step
// records the model; otherwise `choice` names it. Errors: InvalidArgument (a choice is needed), NotFound (no such
// folder), FailedPrecondition (another model), and those of opening each.
absl::StatusOr<FolderPair> open_both(storage::Files& files, const std::string& a, const std::string& b,
                                     const ModelChoice& choice);

}  // namespace titan::tools
