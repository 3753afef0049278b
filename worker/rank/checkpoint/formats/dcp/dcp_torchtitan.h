#pragma once

// Translates what torchtitan saves in a folder of torch.distributed.checkpoint: DcpNames maps its tensors to Titan's
// keys, and dcp_train_state() reads the rest.

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"

namespace titan::checkpoint {

inline constexpr char kDcpOptimizer[] = "optimizer.state.";  // Prefix of optimizer.state.FQN.STATE.

// Names of tensors in such a folder. The model's have no prefix; an optimizer's state follows its parameter's name. A
// folder of another program may have the model in a dict "model".
class DcpNames {
 public:
  explicit DcpNames(const DcpMetadata& metadata);

  // Returns the folder's name for a key of Titan; "" if it has none.
  std::string of(const std::string& key) const;
  // Returns Titan's key of a tensor of the model; "" for any other tensor.
  std::string model_key(const std::string& there) const;
  // Returns Titan's key of a parameter's state, "optim.STATE.FQN"; "" for any other tensor. torch counts steps per
  // parameter and Titan does not: the key of each count is "optim.step".
  std::string optimizer_key(const std::string& there) const;

 private:
  bool nested_ = false;
};

// Returns whether this is a table or counter that every program computes itself, not a weight.
bool is_derived(const std::string& fqn);

// Returns the train state that torchtitan saves, in the form of Titan's steps: {"step", "ntokens_seen", "lr_scheduler":
// {"last_epoch"}, "dataloader": {"order": "per_rank", "dp_size", "ranks"}}, with {"sample_idx", "tokens_left"}
// (worker/rank/data/loader/loader.h) or {"unread": why} for each data-parallel rank. Members that the folder lacks are
// left out, except the step: FailedPrecondition.
absl::StatusOr<nlohmann::json> dcp_train_state(DcpFolder& folder);

}  // namespace titan::checkpoint
