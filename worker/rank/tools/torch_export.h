#pragma once

// Writes a step's model as one file of torch.save: a state dict under torchtitan's names, or under torchtune's (0.6.1)
// as in its FullModelTorchTuneCheckpointer and DistributedCheckpointer. The values are the same under both, because
// both rotate adjacent pairs.

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
  int64_t max_piece_bytes = int64_t{256} << 20;  // Bytes of a tensor held in memory, twice.
};

// Writes the new folder `folder` with model.pt. Returns warnings. FailedPrecondition if torchtune does not have the
// model.
absl::StatusOr<std::vector<std::string>> write_torch(storage::Files& files, checkpoint::StepReader& step,
                                                     const models::ModelSpec& spec, const TorchExport& options,
                                                     const std::string& folder,
                                                     const std::function<void(const std::string& file)>& progress);

// Returns whether these are torchtune's names.
bool are_torchtune_names(const std::set<std::string>& names);

// Returns FailedPrecondition if torchtune does not have the model. Of Titan's families it has Llama 3.
absl::Status check_torchtune_has(const models::ModelSpec& spec);

// Returns torchtune's name of a parameter.
std::string torchtune_name(const std::string& fqn);

}  // namespace titan::tools
