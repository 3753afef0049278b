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

// A model whose parameters are this rank's shards, one or more shard units per block, run by stages.
class ShardedModel {
 public:
  // `model` must be parallelized. The mesh must have the groups kFsdp and kReplicate, and those of the model's other
  // axes larger than one. Mesh and device must outlive this. Values are zero until init_weights() or a checkpoint fills
  // them. Errors: those of parallel::checkpoint_plan; InvalidArgument for an unknown reshard_after_forward.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> create(model::Model model, const ShardingOptions& options,
                                                              const comm::DeviceMesh& mesh, device::Device& device);

  // Draws this rank's rows of all, frozen or trained parameters, with the same values on any mesh.
  enum class Which { kAll, kFrozen, kTrained };
  void init_weights(uint64_t seed, Which which = Which::kAll);

  // Call it before the first gather after weights have changed. Precomputes what gathers need to know about all
  // weights. Collective.
  void prepare_gathers();
  // Returns this rank's stages by index in the whole model, for an Executor.
  std::map<int, StageRunner*> stages();
  // Stage::visit(), with its shapes, for a model without a pipeline. Collective if weights are sharded.
  at::Tensor visit(at::Tensor activation, const Stage::Visit& pass);
  at::Device device() const { return device_.torch_device(); }
  // The blocks of this rank, in model order.
  const std::vector<nn::Block*>& blocks() const { return local_blocks_; }
  std::vector<std::unique_ptr<parallel::ShardUnit>>& units() { return units_; }
  // Returns every trained parameter of the whole model, in model order, on whichever rank it is.
  std::vector<models::ParameterSpec> whole_parameters() const;
  // Returns this rank's pieces of all parameters, in model order.
  std::vector<parallel::ShardedParameter*> parameters();
  // Returns the trained ones: the optimizer's slots.
  std::vector<parallel::ShardedParameter*> trained();
  // Returns the gradient shards that this rank counts in the norm. Of several ranks with the same shard only one
  // returns it. Each has the shape of ShardedParameter::grad.
  std::vector<at::Tensor> gradients();
  // Waits until every gradient shard is complete and frees weights kept for the step.
  void finish_step();
  // Call it without a pipeline and before the first step. During the backward pass, `update` is called with the
  // optimizer slots (first index and number) of each unit as soon as its gradients of the step are complete. Then they
  // are freed.
  using Update = std::function<void(const parallel::ShardUnit& unit, size_t first_slot, size_t count)>;
  void update_early(Update update) { update_ = std::move(update); }
  // Frees gathered weights, after an evaluation.
  void release();
  // Makes the next microbatch's gradients replace the current ones.
  void reset_gradients();

  std::vector<optim::Slot> optimizer_slots();
  // Returns live state for checkpoints: the weights and, if `optimizer` is not null, its state. If some parameters are
  // frozen, only the trained ones and not the buffers.
  std::vector<checkpoint::Slice> slices(optim::Optimizer* optimizer);
  // Returns the frozen parameters and buffers of a model that has frozen parameters; otherwise nothing.
  std::vector<checkpoint::Slice> base_slices();
  bool has_base() const;  // The same on every rank, regardless of its parameters.

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
  std::vector<nn::Block*> local_blocks_;  // Blocks of this rank.
  std::vector<std::unique_ptr<parallel::ShardUnit>> units_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  Update update_;
};

}  // namespace titan::runtime
