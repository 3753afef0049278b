#include "worker/runtime/sharded_model.h"

#include <c10/util/accumulate.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/nn/init.h"
#include "worker/parallel/activation_checkpoint.h"

namespace titan::runtime {

using parallel::Keep;
using parallel::ShardedParameter;
using parallel::ShardUnit;

namespace {

// A block's parameters by shard unit. One that outweighs all others of its block together (the head's
// matrix beside its norm) is a unit of its own: it is gathered straight into its storage, while copying several
// parameters out of a gather buffer takes their memory twice for a moment. That is no more than the neighbours take
// together when blocks are alike, but a head can be far larger than a layer.
std::vector<std::vector<nn::Parameter*>> unit_plan(nn::Block& block) {
  std::vector<nn::Parameter*> rest;
  int64_t total = 0;
  nn::Parameter* heaviest = nullptr;
  for (nn::Parameter& parameter : block.parameters()) {
    rest.push_back(&parameter);
    total += c10::multiply_integers(parameter.shape);
    if (heaviest == nullptr || c10::multiply_integers(parameter.shape) > c10::multiply_integers(heaviest->shape)) {
      heaviest = &parameter;
    }
  }
  if (rest.size() < 2 || 2 * c10::multiply_integers(heaviest->shape) <= total) return {std::move(rest)};
  const bool first = rest.front() == heaviest;
  std::erase(rest, heaviest);
  if (first) return {{heaviest}, std::move(rest)};
  return {std::move(rest), {heaviest}};
}

bool is_layer(const nn::Block& block) { return absl::StartsWith(block.name(), "layers."); }

// How long each block's weights stay gathered. By default the head and the last layer, which the backward pass needs
// first, stay between the two passes (they are two consecutive blocks); with nothing to gather from other ranks,
// converted weights stay for the whole step.
absl::StatusOr<std::vector<Keep>> keep_plan(const std::string& policy, size_t num_blocks, int shard_ranks) {
  if (policy == "always") return std::vector<Keep>(num_blocks, Keep::kNothing);
  if (policy == "never") return std::vector<Keep>(num_blocks, Keep::kUntilBackward);
  if (policy != "default") {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.fsdp_reshard_after_forward: \"", policy, "\" is not one of default, always, never"));
  }
  if (shard_ranks == 1) return std::vector<Keep>(num_blocks, Keep::kUntilStepEnd);
  std::vector<Keep> plan(num_blocks, Keep::kNothing);
  for (size_t i = num_blocks < 2 ? 0 : num_blocks - 2; i < num_blocks; ++i) plan[i] = Keep::kUntilBackward;
  return plan;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::create(model::Model model, const ShardingOptions& options,
                                                                   const comm::DeviceMesh& mesh, comm::Device& device,
                                                                   std::function<void(BlockEngine::Pass)> entered) {
  std::unique_ptr<ShardedModel> sharded(new ShardedModel(std::move(model), mesh));
  const auto& blocks = sharded->model_.blocks;
  const comm::Group& fsdp = mesh.group(mesh::Axis::kFsdp);
  const int layers =
      static_cast<int>(std::count_if(blocks.begin(), blocks.end(), [](const auto& block) { return is_layer(*block); }));
  TITAN_ASSIGN_OR_RETURN(const std::vector<bool> recompute,
                         parallel::recompute_plan(options.ac_mode, options.ac_option, layers));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Keep> keep,
                         keep_plan(options.reshard_after_forward, blocks.size(), fsdp.size()));
  std::vector<EngineBlock> engine_blocks;
  int layer = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    nn::Block& block = *blocks[i];
    std::vector<ShardUnit*> units;
    for (std::vector<nn::Parameter*>& parameters : unit_plan(block)) {
      sharded->units_.push_back(
          std::make_unique<ShardUnit>(block.name(), std::move(parameters),
                                      parallel::ShardUnitOptions{.shard_group = &fsdp,
                                                                 .replicate_group = &mesh.group(mesh::Axis::kReplicate),
                                                                 .device = &device,
                                                                 .precision = options.precision,
                                                                 .keep = keep[i]}));
      units.push_back(sharded->units_.back().get());
    }
    block.init_buffers(device.torch_device(), options.precision.param);
    engine_blocks.push_back({.block = &block,
                             .units = std::move(units),
                             .recompute = is_layer(block) && recompute[layer++],
                             .backward_reads_weights = block.name() != "tok_embeddings"});
  }
  sharded->engine_ = std::make_unique<BlockEngine>(std::move(engine_blocks), std::move(entered));
  return sharded;
}

void ShardedModel::init_weights(uint64_t seed) {
  at::NoGradGuard no_grad;
  for (ShardedParameter* placed : parameters()) {
    if (placed->rows == 0) continue;
    const int64_t begin = placed->first_row * placed->row_numel;
    const int64_t count = placed->rows * placed->row_numel;
    at::Tensor target = placed->value.view({-1});
    if (target.is_cpu()) {
      nn::fill(*placed->parameter, seed, begin, begin + count, target);
    } else {
      at::Tensor drawn = at::empty({count}, target.options().device(at::kCPU));
      nn::fill(*placed->parameter, seed, begin, begin + count, drawn);
      target.copy_(drawn);
    }
  }
}

std::vector<ShardedParameter*> ShardedModel::parameters() {
  std::vector<ShardedParameter*> all;
  for (auto& unit : units_) {
    for (ShardedParameter& placed : unit->parameters()) all.push_back(&placed);
  }
  return all;
}

std::vector<at::Tensor> ShardedModel::gradients() {
  std::vector<at::Tensor> all;
  for (ShardedParameter* placed : parameters()) all.push_back(placed->grad);
  return all;
}

void ShardedModel::forget_gradients() {
  for (auto& unit : units_) unit->forget_gradients();
}

void ShardedModel::scale_gradients(double factor) {
  for (auto& unit : units_) unit->scale_gradients(factor);
}

std::vector<optim::Slot> ShardedModel::optimizer_slots() {
  std::vector<optim::Slot> slots;
  for (ShardedParameter* placed : parameters()) slots.push_back({placed->parameter->fqn, placed->value, placed->grad});
  return slots;
}

std::vector<checkpoint::Slice> ShardedModel::slices(optim::Optimizer* optimizer) {
  const bool primary = mesh_.group(mesh::Axis::kReplicate).rank() == 0;
  std::vector<checkpoint::Slice> all;
  const auto add = [&](const std::string& prefix, const ShardedParameter& placed, const at::Tensor& local) {
    checkpoint::Slice slice{prefix + placed.parameter->fqn, placed.parameter->shape, {}, local, primary};
    slice.offset.assign(slice.shape.size(), 0);
    if (!slice.offset.empty()) slice.offset[0] = placed.first_row;
    all.push_back(std::move(slice));
  };
  const std::vector<ShardedParameter*> placed = parameters();
  for (const ShardedParameter* one : placed) add("model.", *one, one->value);
  if (optimizer == nullptr) return all;
  for (size_t i = 0; i < placed.size(); ++i) {
    add("optim.exp_avg.", *placed[i], optimizer->states()[i].exp_avg);
    add("optim.exp_avg_sq.", *placed[i], optimizer->states()[i].exp_avg_sq);
  }
  all.push_back({"optim.step", {}, {}, optimizer->step_count(), mesh_.rank() == 0});
  return all;
}

}  // namespace titan::runtime
