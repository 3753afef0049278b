#include "worker/rank/runtime/engine/shard_units.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace titan::runtime {

using mesh::Reshard;
using parallel::ShardUnit;

namespace {

int64_t numel(const nn::Parameter& parameter) { return c10::multiply_integers(parameter.shape); }

// One parameter that is larger than all others together (the head's matrix compared with its norm) gets a separate
// unit. It is gathered directly into its storage, while copying several parameters out of a gather buffer briefly needs
// their memory twice. Among similar blocks this is no more than two neighbours need together, but a head can be far
// larger than a layer.
std::vector<std::vector<nn::Parameter*>> set_heaviest_apart(std::vector<nn::Parameter*> parameters) {
  int64_t total = 0;
  nn::Parameter* heaviest = nullptr;
  for (nn::Parameter* parameter : parameters) {
    total += numel(*parameter);
    if (heaviest == nullptr || numel(*parameter) > numel(*heaviest)) heaviest = parameter;
  }
  if (parameters.size() < 2 || 2 * numel(*heaviest) <= total) return {std::move(parameters)};
  const bool first = parameters.front() == heaviest;
  std::erase(parameters, heaviest);
  if (first) return {{heaviest}, std::move(parameters)};
  return {std::move(parameters), {heaviest}};
}

const comm::Group* group_if_any(const comm::DeviceMesh& mesh, mesh::Axis axis) {
  return mesh.mesh().size(axis) > 1 ? &mesh.group(axis) : nullptr;
}

// Returns whether another block reads the parameter too.
bool is_shared(const model::Model& model, const nn::Parameter& parameter) {
  return std::any_of(model.blocks.begin(), model.blocks.end(), [&](const auto& block) {
    const std::vector<nn::Parameter*> shared = block->shared_parameters();
    return std::find(shared.begin(), shared.end(), &parameter) != shared.end();
  });
}

// Separates parameters that are frozen, packed, trained, and trained but gathered as float8: they are gathered in
// different types, and only trained ones have gradients.
void add_units(const UnitContext& context, const std::string& name, const std::vector<nn::Parameter*>& parameters,
               bool expert_mesh, mesh::Reshard keep, Units& all, std::vector<ShardUnit*>& units) {
  std::map<std::tuple<bool, bool, bool>, std::vector<nn::Parameter*>> kinds;
  for (nn::Parameter* parameter : parameters) {
    kinds[{!parameter->frozen, parameter->packed_row > 0, gathers_as_float8(context, *parameter)}].push_back(parameter);
  }
  for (auto& [kind, alike] : kinds) {
    if (expert_mesh) {
      units.push_back(make_unit(context, name, {std::move(alike), expert_mesh}, keep, all));
      continue;
    }
    for (std::vector<nn::Parameter*>& some : set_heaviest_apart(std::move(alike)))
      units.push_back(make_unit(context, name, {std::move(some)}, keep, all));
  }
}

}  // namespace

ShardUnit* make_unit(const UnitContext& context, const std::string& name, const UnitPlan& plan, mesh::Reshard keep,
                     Units& all) {
  const mesh::Mesh& mesh = context.mesh.mesh();
  const nn::Parameter& first = *plan.parameters.front();
  parallel::Precision precision = context.options.precision;
  if (first.frozen) precision.master = context.options.frozen;
  if (first.packed_row > 0) precision.master = precision.param = at::kByte;
  // With more ranks than experts, every expert's matrices are split along their own rows instead.
  const bool few_experts =
      plan.expert_mesh && mesh.size(mesh::Axis::kExpertFsdp) > plan.parameters.front()->shape.front();
  return all
      .emplace_back(std::make_unique<ShardUnit>(
          name, plan.parameters,
          parallel::ShardUnitOptions{
              .shard_group = &context.mesh.group(plan.expert_mesh ? mesh::Axis::kExpertFsdp : mesh::Axis::kFsdp),
              .replicate_group = &context.mesh.group(mesh::Axis::kReplicate),
              .tensor_group = group_if_any(context.mesh, mesh::Axis::kTensor),
              .device = &context.device,
              .precision = precision,
              .gather = gathers_as_float8(context, first) ? context.options.float8_gather.get() : nullptr,
              .keep = keep,
              .dim = few_experts ? 1 : 0,
              .users = plan.users,
              .offload = context.options.cpu_offload}))
      .get();
}

std::vector<ShardUnit*> make_units(const UnitContext& context, nn::Block& block, mesh::Reshard keep, Units& all) {
  const bool expert_mesh = context.mesh.mesh().size(mesh::Axis::kExpert) > 1;
  std::vector<nn::Parameter*> dense, experts;
  std::vector<ShardUnit*> units;
  for (nn::Parameter& parameter : block.parameters()) {
    if (is_shared(context.model, parameter)) {
      units.push_back(make_unit(context, block.name(), {{&parameter}}, keep, all));
    } else {
      (expert_mesh && parameter.expert ? experts : dense).push_back(&parameter);
    }
  }
  add_units(context, block.name(), dense, /*expert_mesh=*/false, keep, all, units);
  add_units(context, block.name() + ".experts", experts, /*expert_mesh=*/true, keep, all, units);
  return units;
}

bool gathers_as_float8(const UnitContext& context, const nn::Parameter& parameter) {
  return context.options.float8_gather != nullptr && context.mesh.mesh().size(mesh::Axis::kFsdp) > 1 &&
         !is_shared(context.model, parameter) && context.options.as_float8(parameter);
}

}  // namespace titan::runtime
