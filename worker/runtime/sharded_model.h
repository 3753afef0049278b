#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/slice.h"
#include "worker/comm/device_mesh.h"
#include "worker/model/model.h"
#include "worker/optim/optimizer.h"
#include "worker/runtime/block_engine.h"

namespace titan::runtime {

struct ShardingOptions {
  parallel::Precision precision;
  std::string reshard_after_forward = "default";  // always, never, default
  std::string ac_mode = "none";                   // activation_checkpoint.mode and selective_ac_option
  std::string ac_option = "2";
};

// A model whose parameters live as this rank's shards: one or two shard units for each block, driven by a BlockEngine.
class ShardedModel {
 public:
  // The mesh must have the groups kFsdp and kReplicate; mesh and device must outlive the model. Values are zero until
  // init_weights() or a checkpoint fills them.
  // Errors: as parallel::recompute_plan; InvalidArgument for an unknown reshard_after_forward.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> create(model::Model model, const ShardingOptions& options,
                                                              const comm::DeviceMesh& mesh, comm::Device& device,
                                                              std::function<void(BlockEngine::Pass)> entered = {});

  // Draws this rank's rows of every parameter; the same values on any mesh.
  void init_weights(uint64_t seed);

  BlockEngine& engine() { return *engine_; }
  std::vector<std::unique_ptr<parallel::ShardUnit>>& units() { return units_; }
  // All parameters in model order.
  std::vector<parallel::ShardedParameter*> parameters();
  // Gradient shards, for the norm and for scaling.
  std::vector<at::Tensor> gradients();
  // The next microbatch's gradients replace the present ones.
  void forget_gradients();
  void scale_gradients(double factor);

  std::vector<optim::Slot> optimizer_slots();
  // Live state for checkpoints: the weights, and the optimizer's state when given.
  std::vector<checkpoint::Slice> slices(optim::Optimizer* optimizer);

 private:
  ShardedModel(model::Model model, const comm::DeviceMesh& mesh) : model_(std::move(model)), mesh_(mesh) {}

  model::Model model_;
  const comm::DeviceMesh& mesh_;
  std::vector<std::unique_ptr<parallel::ShardUnit>> units_;
  std::unique_ptr<BlockEngine> engine_;
};

}  // namespace titan::runtime
