#pragma once

// How torchtitan's names in a folder of torch.distributed.checkpoint are ours.

#include <string>

#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"

namespace titan::checkpoint {

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

}  // namespace titan::checkpoint
