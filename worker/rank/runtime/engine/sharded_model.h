#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/checkpoint/shards/slice.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/model/model.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/parallel/shard_unit.h"
#include "worker/rank/runtime/engine/sharding_options.h"
#include "worker/rank/runtime/engine/stage.h"
#include "worker/rank/runtime/engine/tied_units.h"

namespace titan::runtime {

// A model whose parameters live as this rank's shards: one or two shard units for each block, driven by stages.
class ShardedModel {
 public:
  // The mesh must have the groups kFsdp and kReplicate, and those of the model's other axes that are above one; mesh
  // and device must outlive the model, which has been parallelized. Values are zero until init_weights() or a
  // checkpoint fills them. Errors: as parallel::checkpoint_plan; InvalidArgument for an unknown reshard_after_forward.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> create(model::Model model, const ShardingOptions& options,
                                                              const comm::DeviceMesh& mesh, device::Device& device);

  // Draws this rank's rows of every parameter, or of those that are frozen or trained; the same values on any mesh.
  enum class Which { kAll, kFrozen, kTrained };
  void init_weights(uint64_t seed, Which which = Which::kAll);

  // Before the first gather after weights have changed: what gathers need to know of all of them. Collective.
  void prepare_gathers();
  // This rank's stages by their index in the whole model, for an Executor.
  std::map<int, StageRunner*> stages();
  // Stage::visit() of a model without a pipeline. Collective where weights are sharded.
  at::Tensor visit(at::Tensor activation, const Stage::Visit& pass);
  at::Device device() const { return device_.torch_device(); }
  // The blocks that live here, in model order.
  const std::vector<nn::Block*>& blocks() const { return local_blocks_; }
  std::vector<std::unique_ptr<parallel::ShardUnit>>& units() { return units_; }
  // Every parameter of the whole model that is trained, in its order, whoever holds it.
  std::vector<models::ParameterSpec> whole_parameters() const;
  // All parameters in model order.
  std::vector<parallel::ShardedParameter*> parameters();
  // Those that are trained: the optimizer's slots.
  std::vector<parallel::ShardedParameter*> trained();
  // The gradient shards that count here for the norm: of several ranks with the same one, one has it in its list.
  std::vector<at::Tensor> gradients();
  // Waits until every gradient shard is complete, and frees weights kept for the step.
  void finish_step();
  // Without a pipeline, and before the first step: in the backward pass, `update` gets the optimizer slots (their index
  // and number) of each unit as soon as its gradients of the step are complete; then their memory goes.
  using Update = std::function<void(const parallel::ShardUnit& unit, size_t first_slot, size_t count)>;
  void update_early(Update update) { update_ = std::move(update); }
  // Frees gathered weights, after an evaluation.
  void release();
  // The next microbatch's gradients replace the present ones.
  void forget_gradients();

  std::vector<optim::Slot> optimizer_slots();
  // Live state for checkpoints: the weights, and the optimizer's state when given. Where some parameters are frozen:
  // those that are trained alone.
  std::vector<checkpoint::Slice> slices(optim::Optimizer* optimizer);
  // What a model that is not trained itself consists of: frozen parameters, and buffers. Empty: it is.
  std::vector<checkpoint::Slice> base_slices();
  bool has_base() const;  // The same on every rank, whichever parameters it holds.

 private:
  ShardedModel(model::Model model, const ShardingOptions& options, const comm::DeviceMesh& mesh, device::Device& device)
      : model_(std::move(model)), options_(options), mesh_(mesh), device_(device) {}

  void make_stages(std::vector<std::vector<EngineBlock>> stages);
  void update(parallel::ShardUnit& unit);

  model::Model model_;
  const ShardingOptions options_;
  const comm::DeviceMesh& mesh_;
  device::Device& device_;
  TiedUnits tied_;
  std::vector<nn::Block*> local_blocks_;  // Those that live here.
  std::vector<std::unique_ptr<parallel::ShardUnit>> units_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  Update update_;
};

}  // namespace titan::runtime
