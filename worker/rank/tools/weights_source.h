#pragma once

// Weights of other programs for an import. The path decides the kind: a Hugging Face folder, a folder of
// torch.distributed.checkpoint, a folder as Meta and Mistral release it, or one file of torch.save.

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::tools {

class WeightsSource {
 public:
  virtual ~WeightsSource() = default;
  // Returns a box, `[box.shape...]`, of a parameter or buffer of the model, which has this shape; undefined if the
  // source does not store it.
  virtual absl::StatusOr<at::Tensor> read(const std::string& fqn, const std::vector<int64_t>& shape,
                                          const checkpoint::Box& box) = 0;
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& notes() const { return notes_; }  // Informational.

 protected:
  std::vector<std::string> warnings_, notes_;
};

// Opens the weights at `path`. FailedPrecondition if they hold tensors that the model does not use. `mapper` must
// outlive the source.
absl::StatusOr<std::unique_ptr<WeightsSource>> open_weights(storage::Files& files, const std::string& path,
                                                            const models::ModelSpec& spec,
                                                            const checkpoint::HfMapper& mapper);

}  // namespace titan::tools
