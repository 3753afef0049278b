#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/sizes.h"
#include "common/plan/pipeline/plan.h"
#include "common/plan/pipeline/schedule.h"
#include "worker/rank/checkpoint/shards/slice.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/model/model.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/parallel/activation_checkpoint.h"
#include "worker/rank/parallel/weight_gather.h"
#include "worker/rank/runtime/engine/stage.h"

namespace titan::runtime {

// This rank's share of a pipeline.
struct PipelineShare {
  std::vector<std::vector<std::string>> stages;  // Names of the blocks of each stage that lives here, in stage order.
  std::vector<int> indices;                      // Of these stages in the whole model.
  int count = 1;                                 // Stages of the whole model.
  bool splits_backward = false;                  // The schedule has input and weight gradients apart.
  int64_t dim = 0;                               // Between stages go activations [B, T / sequence_ranks, dim].
  int64_t sequence_ranks = 1;
  int first_rank = 0;  // Who holds the first and the last stage, as indices on mesh::Axis::kPipeline.
  int last_rank = 0;
};

// What `schedule` and `split` give to the rank with this index on mesh::Axis::kPipeline.
PipelineShare share_of(const pipeline::Schedule& schedule, const pipeline::Split& split, int rank);

// Whether layers' passes become graphs of a device that has them (block_graphs.h).
struct GraphOptions {
  bool wanted = false;
  std::function<void(const std::string&)> say;  // Told, once each, of what cannot be one; may be empty.
};

struct ShardingOptions {
  parallel::Precision precision;
  at::ScalarType frozen = at::kFloat;             // Shards of parameters that are not trained.
  std::string reshard_after_forward = "default";  // always, never, default
  parallel::CheckpointOptions ac;
  bool cpu_offload = false;  // training.enable_cpu_offload
  bool early_step = false;   // optimizer.early_step_in_backward: update_early() will be called.
  GraphOptions graphs;
  // How the weights that `as_float8` names are gathered, in units apart from others; null: as all are.
  std::shared_ptr<const parallel::Float8Gather> float8_gather;
  std::function<bool(const nn::Parameter&)> as_float8;
  std::optional<PipelineShare> pipeline;  // None: this rank has all blocks, as one stage.
};

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
  std::vector<models::Tensor> whole_parameters() const;
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

  struct UnitPlan;
  parallel::ShardUnit* make_unit(const std::string& name, const UnitPlan& plan, parallel::Keep keep);
  std::vector<parallel::ShardUnit*> make_units(nn::Block& block, parallel::Keep keep);
  void add_units(const std::string& name, const std::vector<nn::Parameter*>& parameters, bool expert_mesh,
                 parallel::Keep keep, std::vector<parallel::ShardUnit*>& units);
  std::vector<checkpoint::Slice> buffer_slices();
  bool is_shared(const nn::Parameter& parameter) const;  // Another block reads it too.
  bool travels_as_float8(const nn::Parameter& parameter) const;
  parallel::ShardUnit* unit_of(const nn::Parameter* parameter) const;
  absl::Status check_shared() const;
  void add_tied_units(std::vector<std::vector<EngineBlock>>& stages, parallel::Keep keep);
  bool takes_graphs() const;
  void choose_graphs(std::vector<std::vector<EngineBlock>>& stages);
  void make_stages(std::vector<std::vector<EngineBlock>> stages);
  const comm::Group* group_if_any(mesh::Axis axis) const;
  void sum_tied();
  void update(parallel::ShardUnit& unit);

  model::Model model_;
  const ShardingOptions options_;
  const comm::DeviceMesh& mesh_;
  device::Device& device_;
  std::vector<parallel::ShardUnit*> tied_units_;  // Parameters that the pipeline's first and last rank both hold.
  int tied_peer_ = 0;
  std::vector<nn::Block*> local_blocks_;  // Those that live here.
  std::vector<std::unique_ptr<parallel::ShardUnit>> units_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  Update update_;
};

}  // namespace titan::runtime
