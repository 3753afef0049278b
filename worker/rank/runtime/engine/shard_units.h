#pragma once

// Decides which parameters of a block are gathered and reduced together, and makes the shard units that do it.

#include <memory>
#include <string>
#include <vector>

#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/device/device.h"
#include "worker/rank/model/model.h"
#include "worker/rank/parallel/shard_unit.h"
#include "worker/rank/runtime/engine/sharding_options.h"

namespace titan::runtime {

using Units = std::vector<std::unique_ptr<parallel::ShardUnit>>;

// Context for making units. Its gathers, groups and device must outlive the units.
struct UnitContext {
  const model::Model& model;
  const ShardingOptions& options;
  const comm::DeviceMesh& mesh;
  device::Device& device;
};

// Parameters that are gathered and reduced together.
struct UnitPlan {
  std::vector<nn::Parameter*> parameters;
  bool expert_mesh = false;
  int users = 1;
};

// Makes a unit of these parameters and appends it to `all`.
parallel::ShardUnit* make_unit(const UnitContext& context, const std::string& name, const UnitPlan& plan,
                               mesh::Reshard keep, Units& all);

// Appends the units of a block's own parameters to `all`. Experts on a separate mesh get a separate unit, as does every
// parameter that another block reads too, and every group that is gathered in another type.
std::vector<parallel::ShardUnit*> make_units(const UnitContext& context, nn::Block& block, mesh::Reshard keep,
                                             Units& all);

// Returns whether the parameter is gathered as float8. Requires that other ranks hold parts of it and no other block
// reads it: that block reads plain values.
bool gathers_as_float8(const UnitContext& context, const nn::Parameter& parameter);

}  // namespace titan::runtime
