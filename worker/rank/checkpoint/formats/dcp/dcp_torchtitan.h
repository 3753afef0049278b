#pragma once

// Translates torchtitan's names and train state in a folder of torch.distributed.checkpoint into ours.

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"

namespace titan::checkpoint {

// How torchtitan's names in a folder of torch.distributed.checkpoint are ours.

inline constexpr char kDcpOptimizer[] = "optimizer.state.";  // optimizer.state.FQN.STATE

// The model's stand by themselves, an optimizer's state behind its parameter's. A folder of somebody else may have a
// dict "model" of them.
class DcpNames {
 public:
  explicit DcpNames(const DcpMetadata& metadata);

  // Of our key; "" for what has no name there.
  std::string of(const std::string& key) const;
  // Our key of a tensor of the model; "" for any other tensor.
  std::string model_key(const std::string& there) const;
  // Our key of a parameter's state, "optim.STATE.FQN"; "" for any other tensor. torch counts steps by parameter, we do
  // not: "optim.step" for each.
  std::string optimizer_key(const std::string& there) const;

 private:
  bool nested_ = false;
};

// Tables and counters that every program makes anew: no weights.
bool is_derived(const std::string& fqn);

// What torchtitan saves besides tensors, in the words of our own steps.

// {"step", "ntokens_seen", "lr_scheduler": {"last_epoch"}, "dataloader": {"order": "per_rank", "dp_size", "ranks"}}: of
// each data-parallel rank {"sample_idx", "tokens_left"} (data/loader.h), or {"unread": why}. Members that the folder
// lacks are left out, but for the step: FailedPrecondition.
absl::StatusOr<nlohmann::json> dcp_train_state(DcpFolder& folder);

}  // namespace titan::checkpoint
