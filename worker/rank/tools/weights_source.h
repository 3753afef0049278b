#pragma once

// Weights of other programs that an import takes: by what lies at the path, a Hugging Face folder, a folder of
// torch.distributed.checkpoint, or one file of torch.save.

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
  // The box of a parameter or buffer of the model, which has this shape; undefined where the source has no place for
  // it.
  virtual absl::StatusOr<at::Tensor> read(const std::string& fqn, const std::vector<int64_t>& shape,
                                          const checkpoint::Box& box) = 0;
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& notes() const { return notes_; }  // Worth saying, and nothing to worry about.

 protected:
  std::vector<std::string> warnings_, notes_;
};

// Errors: FailedPrecondition when it holds what the model has no use for. `mapper` outlives the source.
absl::StatusOr<std::unique_ptr<WeightsSource>> open_weights(storage::Files& files, const std::string& path,
                                                            const models::ModelSpec& spec,
                                                            const checkpoint::HfMapper& mapper);

}  // namespace titan::tools
