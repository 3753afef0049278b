#include "worker/rank/runtime/engine/sharded_model.h"

#include <algorithm>
#include <utility>

#include "common/base/status/status.h"
#include "worker/rank/parallel/activation_checkpoint.h"
#include "worker/rank/runtime/engine/graph_choice.h"
#include "worker/rank/runtime/engine/initial_weights.h"
#include "worker/rank/runtime/engine/model_slices.h"
#include "worker/rank/runtime/engine/shard_units.h"

namespace titan::runtime {

using mesh::Reshard;
using parallel::ShardedParameter;
using parallel::ShardUnit;

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::create(model::Model model, const ShardingOptions& options,
                                                                   const comm::DeviceMesh& mesh,
                                                                   device::Device& device) {
  std::unique_ptr<ShardedModel> sharded(new ShardedModel(std::move(model), options, mesh, device));
  TITAN_RETURN_IF_ERROR(check_shared(sharded->model_, options.pipeline.has_value()));
  const auto& blocks = sharded->model_.blocks;
  TITAN_ASSIGN_OR_RETURN(const auto stage_blocks, blocks_by_stage(sharded->model_, options.pipeline));
  // The layers of a tower in front are entry blocks. They are recomputed by the same rule, but counted apart.
  const size_t entry = sharded->model_.entry_blocks;
  const auto is_tower_layer = [&](size_t index) { return index > 0 && index + 1 < entry; };
  const auto is_layer = [&](size_t index) { return index >= entry && index + 1 < blocks.size(); };
  std::vector<nn::Block*> tower_layers, layers;
  size_t count = 0;
  for (const auto& stage : stage_blocks) {
    count += stage.size();
    for (const size_t index : stage) {
      if (is_tower_layer(index)) tower_layers.push_back(blocks[index].get());
      if (is_layer(index)) layers.push_back(blocks[index].get());
    }
  }
  TITAN_ASSIGN_OR_RETURN(std::vector<parallel::BlockCheckpoint> checkpoints,
                         parallel::checkpoint_plan(options.ac, tower_layers));
  TITAN_ASSIGN_OR_RETURN(const std::vector<parallel::BlockCheckpoint> of_layers,
                         parallel::checkpoint_plan(options.ac, layers));
  checkpoints.insert(checkpoints.end(), of_layers.begin(), of_layers.end());
  const bool gathers = mesh.mesh().size(mesh::Axis::kFsdp) > 1 || mesh.mesh().size(mesh::Axis::kExpertFsdp) > 1;
  TITAN_ASSIGN_OR_RETURN(const std::vector<Reshard> keep, mesh::reshard_plan(options.reshard_after_forward, count,
                                                                             gathers, options.pipeline.has_value()));
  const UnitContext context = {sharded->model_, sharded->options_, mesh, device};
  std::vector<std::vector<EngineBlock>> stages;
  size_t layer = 0;
  size_t position = 0;
  for (const auto& stage : stage_blocks) {
    std::vector<EngineBlock>& entries = stages.emplace_back();
    for (const size_t index : stage) {
      nn::Block& block = *blocks[index];
      entries.push_back(
          {.block = &block,
           .units = make_units(context, block, keep[position++], sharded->units_),
           .checkpoint = is_tower_layer(index) || is_layer(index) ? checkpoints[layer++] : parallel::BlockCheckpoint(),
           .backward_reads_weights = block.backward_reads_weights(),
           .layer = is_layer(index)});
      block.init_buffers(device.torch_device(), options.precision.param);
      sharded->local_blocks_.push_back(&block);
    }
  }
  sharded->tied_ =
      add_tied_units(context, keep.empty() ? Reshard::kAfterForward : keep.back(), sharded->units_, stages);
  if (can_use_graphs(sharded->options_, mesh.mesh(), device))
    choose_graphs(stages, sharded->options_.graphs, device.torch_device());
  sharded->make_stages(std::move(stages));
  return sharded;
}

void ShardedModel::init_weights(uint64_t seed, Which which) {
  at::NoGradGuard no_grad;
  for (ShardedParameter* placed : parameters()) {
    if (placed->value.numel() == 0) continue;
    if (which != Which::kAll && placed->parameter->frozen != (which == Which::kFrozen)) continue;
    draw_parameter(*placed, seed, device_);
  }
}

std::vector<models::ParameterSpec> ShardedModel::whole_parameters() const {
  std::vector<models::ParameterSpec> all;
  for (const auto& block : model_.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      if (parameter.frozen) continue;
      all.push_back({parameter.fqn, parameter.global_shape,
                     parameter.expert ? models::ParameterRole::kExpert : models::ParameterRole::kDense});
    }
  }
  return all;
}

void ShardedModel::prepare_gathers() {
  if (options_.float8_gather == nullptr || !options_.float8_gather->precomputes()) return;
  const UnitContext context = {model_, options_, mesh_, device_};
  std::vector<const ShardedParameter*> all;
  for (const ShardedParameter* placed : parameters()) {
    if (gathers_as_float8(context, *placed->parameter)) all.push_back(placed);
  }
  options_.float8_gather->precompute(all, device_.torch_device());
}

std::vector<ShardedParameter*> ShardedModel::parameters() {
  std::vector<ShardedParameter*> all;
  for (auto& unit : units_) {
    for (ShardedParameter& placed : unit->parameters()) all.push_back(&placed);
  }
  return all;
}

std::vector<ShardedParameter*> ShardedModel::trained() {
  std::vector<ShardedParameter*> all = parameters();
  std::erase_if(all, [](const ShardedParameter* placed) { return placed->parameter->frozen; });
  return all;
}

std::vector<at::Tensor> ShardedModel::gradients() {
  std::vector<at::Tensor> all;
  for (ShardedParameter* placed : trained()) {
    if (placed->primary) all.push_back(placed->grad);
  }
  return all;
}

void ShardedModel::finish_step() {
  // From the last block to the first, the order in which the reductions were started.
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    const std::vector<EngineBlock>& blocks = stage->second->blocks();
    for (auto entry = blocks.rbegin(); entry != blocks.rend(); ++entry) {
      for (ShardUnit* unit : entry->units) unit->finish_tensor_sum();
    }
  }
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    const std::vector<EngineBlock>& blocks = stage->second->blocks();
    for (auto entry = blocks.rbegin(); entry != blocks.rend(); ++entry) {
      for (ShardUnit* unit : entry->units) unit->finish_gradients();
    }
  }
  release();
  sum_tied(tied_, mesh_, device_.torch_device());
}

void ShardedModel::update(ShardUnit& unit) {
  size_t first = 0;
  for (const auto& one : units_) {
    if (one.get() == &unit) break;
    if (!one->frozen()) first += one->parameters().size();
  }
  update_(unit, first, unit.parameters().size());
  unit.free_gradients();
}

void ShardedModel::release() {
  for (auto& unit : units_) unit->reshard();
}

at::Tensor ShardedModel::visit(at::Tensor activation, const Stage::Visit& pass) {
  TORCH_CHECK(stages_.size() == 1 && !options_.pipeline, "a pipeline stage is not a whole model");
  return stages_.begin()->second->visit(std::move(activation), pass);
}

std::map<int, StageRunner*> ShardedModel::stages() {
  std::map<int, StageRunner*> all;
  for (auto& [index, stage] : stages_) all[index] = stage.get();
  return all;
}

void ShardedModel::make_stages(std::vector<std::vector<EngineBlock>> stages) {
  const PipelineShare whole{.stages = {}, .indices = {0}};
  const PipelineShare& share = options_.pipeline ? *options_.pipeline : whole;
  for (size_t i = 0; i < stages.size(); ++i) {
    const int index = share.indices[i];
    StageOptions options;
    options.first = index == 0;
    options.last = index + 1 == share.count;
    options.loss = model_.loss;
    options.input = model_.input;
    options.entry_blocks = model_.entry_blocks;
    options.edge_rows = model_.edge_rows;
    options.edge_length = model_.edge_length;
    options.dim = share.dim;
    options.sequence_ranks = share.sequence_ranks;
    options.activation = at::TensorOptions().device(device_.torch_device()).dtype(options_.precision.param);
    // If microbatches interleave, weights are gathered and gradients reduced once per step, unless memory matters more.
    options.reduce_once = options_.pipeline.has_value() && options_.reshard_after_forward != "always";
    options.splits_backward = share.splits_backward;
    if (std::any_of(stages[i].begin(), stages[i].end(), [](const EngineBlock& entry) { return entry.as_graph; })) {
      options.graphs = BlockGraphs::create(device_, options_.graphs.say);
    }
    if (options_.early_step) options.completed = [this](ShardUnit& unit) { update(unit); };
    stages_[index] = std::make_unique<Stage>(std::move(stages[i]), std::move(options));
  }
}

void ShardedModel::reset_gradients() {
  for (auto& unit : units_) unit->reset_gradients();
}

std::vector<optim::Slot> ShardedModel::optimizer_slots() {
  std::vector<optim::Slot> slots;
  for (ShardedParameter* placed : trained()) {
    slots.push_back({.fqn = placed->parameter->fqn,
                     .value = placed->value,
                     .grad = placed->grad,
                     .shape = placed->parameter->global_shape,
                     .offset = placed->global_offset()});
  }
  return slots;
}

std::vector<checkpoint::Slice> ShardedModel::slices(optim::Optimizer* optimizer) {
  std::vector<checkpoint::Slice> all = trained_slices(trained(), optimizer, mesh_.group(mesh::Axis::kReplicate));
  if (!has_base()) {
    for (checkpoint::Slice& buffer : buffer_slices(local_blocks_, mesh_)) all.push_back(std::move(buffer));
  }
  if (optimizer == nullptr) return all;
  all.push_back({"optim.step", {}, {}, optimizer->step_count(), mesh_.rank() == 0});
  return all;
}

bool ShardedModel::has_base() const {
  return std::any_of(model_.blocks.begin(), model_.blocks.end(), [](const auto& block) {
    return std::any_of(block->parameters().begin(), block->parameters().end(),
                       [](const nn::Parameter& parameter) { return parameter.frozen; });
  });
}

std::vector<checkpoint::Slice> ShardedModel::base_slices() {
  if (!has_base()) return {};
  std::vector<checkpoint::Slice> all = buffer_slices(local_blocks_, mesh_);
  for (checkpoint::Slice& frozen : frozen_slices(parameters())) all.push_back(std::move(frozen));
  return all;
}

}  // namespace titan::runtime
