#pragma once

// Writes a step's model as one file of torch.save: a state dict under torchtitan's names, or under torchtune's (0.6.1)
// as its FullModelTorchTuneCheckpointer and DistributedCheckpointer keep them. The numbers are the same under both:
// rotary pairs lie side by side.

#include <ATen/ATen.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/shards/narrowing.h"
#include "worker/rank/checkpoint/shards/step_reader.h"

namespace titan::tools {

struct TorchExport {
  bool torchtune = false;
  at::ScalarType dtype = at::kFloat;
  checkpoint::Overflow overflow = checkpoint::Overflow::kRefuse;
  int64_t max_piece_bytes = int64_t{256} << 20;  // Of a tensor; so much is in memory, twice.
};

// Writes the new folder `folder` with model.pt in it. Returns warnings. Errors: FailedPrecondition for a model that
// torchtune lacks.
absl::StatusOr<std::vector<std::string>> write_torch(storage::Files& files, checkpoint::StepReader& step,
                                                     const models::ModelSpec& spec, const TorchExport& options,
                                                     const std::string& folder,
                                                     const std::function<void(const std::string& file)>& progress);

// Whether these are names of torchtune's.
bool are_torchtune_names(const std::set<std::string>& names);

// FailedPrecondition when torchtune has no such model: of the families here it has Llama 3.
absl::Status check_torchtune_has(const models::ModelSpec& spec);

// torchtune's name of a parameter.
std::string torchtune_name(const std::string& fqn);

}  // namespace titan::tools
