#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"
#include "worker/rank/model/encoders/weight_names.h"
#include "worker/rank/nn/block.h"

namespace titan::encoders {

// Opens the safetensors at `path`: a file, or a folder of transformers or diffusers. A folder's index of several files
// comes first, then model.safetensors, diffusion_pytorch_model.safetensors or ae.safetensors, so that variants next to
// them (model.fp16.safetensors) are ignored, then whatever *.safetensors it has. Errors: those of HfFolder;
// FailedPrecondition for weights in another format (pytorch_model.bin), with a remedy.
absl::StatusOr<std::unique_ptr<checkpoint::HfFolder>> open_weights(storage::Files& files, const std::string& path);

// An encoder's weights in files. Reads whole parameters, or boxes of them for a shard.
class FrozenWeights {
 public:
  FrozenWeights(std::unique_ptr<checkpoint::HfFolder> files, WeightNames names);

  // Checks, without reading values, that the files have every parameter in its shape and no tensor that the encoder has
  // no place for. Errors: FailedPrecondition, names files, tensors and shapes.
  absl::Status check(const std::vector<nn::Parameter*>& parameters) const;

  // Returns the box, `[box.shape...]`, of a parameter of shape Parameter::global_shape, on the CPU in the file's type.
  // A file may hold a matrix [n, m] as [n, m, 1, 1], and the reverse. Errors: those of check(), and of reading.
  absl::StatusOr<at::Tensor> read(const nn::Parameter& parameter, const checkpoint::Box& box) const;

  const std::string& path() const { return files_->folder(); }

 private:
  absl::StatusOr<std::string> key_of(const nn::Parameter& parameter) const;
  absl::Status check_strangers(const std::vector<nn::Parameter*>& parameters) const;
  absl::Status missing(const std::string& fqn) const;

  std::unique_ptr<checkpoint::HfFolder> files_;
  WeightNames names_;
};

}  // namespace titan::encoders
