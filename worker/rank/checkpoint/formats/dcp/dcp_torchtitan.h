#pragma once

// What torchtitan saves in a folder of torch.distributed.checkpoint, translated: DcpNames finds Titan's keys for its
// tensors, and dcp_train_state() reads what is saved besides them.

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"

namespace titan::checkpoint {

inline constexpr char kDcpOptimizer[] = "optimizer.state.";  // optimizer.state.FQN.STATE

// The names of tensors in such a folder. The model's stand by themselves, an optimizer's state after its parameter's. A
// folder of another program may have a dict "model" of them.
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

// Whether this is a table or counter that every program computes itself, and not a weight.
bool is_derived(const std::string& fqn);

// What torchtitan saves besides tensors, as Titan's own steps have it: {"step", "ntokens_seen", "lr_scheduler":
// {"last_epoch"}, "dataloader": {"order": "per_rank", "dp_size", "ranks"}}, with {"sample_idx", "tokens_left"}
// (worker/rank/data/loader/loader.h) or {"unread": why} for each data-parallel rank. Members that the folder lacks are
// left out, but for the step: FailedPrecondition.
absl::StatusOr<nlohmann::json> dcp_train_state(DcpFolder& folder);

}  // namespace titan::checkpoint
