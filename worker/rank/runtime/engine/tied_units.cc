#include "worker/rank/runtime/engine/tied_units.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace titan::runtime {

using mesh::Reshard;
using parallel::ShardUnit;

namespace {

ShardUnit* unit_of(const nn::Parameter* parameter, const Units& all) {
  for (const auto& unit : all) {
    if (unit->parameters().front().parameter == parameter) return unit.get();  // The only one of its unit.
  }
  return nullptr;
}

}  // namespace

absl::Status check_shared(const model::Model& model, bool pipelined) {
  for (const auto& block : model.blocks) {
    for (const nn::Parameter* shared : block->shared_parameters()) {
      if (!shared->expert) continue;
      return absl::UnimplementedError(
          absl::StrCat("block ", block->name(), " shares ", shared->fqn, ": routed experts cannot be shared"));
    }
  }
  if (!pipelined) return absl::OkStatus();
  const auto of_entry = [&](const nn::Parameter* shared) {
    const auto end = model.blocks.begin() + static_cast<std::ptrdiff_t>(model.entry_blocks);
    return std::any_of(model.blocks.begin(), end, [&](const auto& block) {
      const auto& own = block->parameters();
      return std::any_of(own.begin(), own.end(), [&](const nn::Parameter& parameter) { return &parameter == shared; });
    });
  };
  for (const auto& block : model.blocks) {
    for (const nn::Parameter* shared : block->shared_parameters()) {
      if (block == model.blocks.back() && of_entry(shared)) continue;
      return absl::UnimplementedError(
          absl::StrCat("parallelism.pipeline_parallel_degree: block ", block->name(), " shares ", shared->fqn,
                       "; over a pipeline only the last block can share parameters, and only those of the blocks that "
                       "make activations of the input, ",
                       model.blocks.front()->name(), " to ", model.blocks[model.entry_blocks - 1]->name()));
    }
  }
  return absl::OkStatus();
}

TiedUnits add_tied_units(const UnitContext& context, mesh::Reshard keep, Units& all,
                         std::vector<std::vector<EngineBlock>>& stages) {
  TiedUnits tied;
  for (auto& stage : stages) {
    for (EngineBlock& entry : stage) {
      for (nn::Parameter* shared : entry.block->shared_parameters()) {
        if (ShardUnit* owner = unit_of(shared, all)) {
          owner->share(keep);
          entry.units.push_back(owner);
          continue;
        }
        ShardUnit* copy = make_unit(context, entry.block->name() + ".tied", {{shared}}, keep, all);
        copy->parameters().front().primary = copy->parameters().front().leads = false;
        if (!copy->frozen()) tied.units.push_back(copy);
        tied.peer = context.options.pipeline->first_rank;
        entry.units.push_back(copy);
      }
    }
  }
  if (!tied.units.empty() || !context.options.pipeline) return tied;
  // The other end: the embedding is here, and the head on another rank reads it.
  for (const nn::Parameter* shared : context.model.blocks.back()->shared_parameters()) {
    ShardUnit* owner = unit_of(shared, all);
    if (owner == nullptr || owner->users() > 1 || owner->frozen()) continue;
    tied.units.push_back(owner);
    tied.peer = context.options.pipeline->last_rank;
  }
  return tied;
}

// Adding two ranks' values gives the same bits in either order. The lower rank sends first, so that the calls pair.
void sum_tied(const TiedUnits& tied, const comm::DeviceMesh& mesh, at::Device device) {
  at::NoGradGuard no_grad;
  for (ShardUnit* unit : tied.units) {
    const comm::Group& pipeline = mesh.group(mesh::Axis::kPipeline);
    at::Tensor mine = unit->gradient_shard();
    // A copy on the communicating device: the shard changes below and may be offloaded.
    const at::Tensor sent = mine.to(device, mine.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    at::Tensor theirs = at::empty_like(sent);
    const bool send_first = pipeline.rank() < tied.peer;
    comm::Pending sending, receiving;
    if (send_first) sending = pipeline.send(sent, tied.peer);
    receiving = pipeline.recv(theirs, tied.peer);
    if (!send_first) sending = pipeline.send(sent, tied.peer);
    receiving.wait();
    mine.add_(theirs.to(mine.device()));
    sending.wait();
  }
}

}  // namespace titan::runtime
