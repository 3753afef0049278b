#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "worker/rank/nn/block.h"
#include "worker/rank/parallel/activation_checkpoint.h"
#include "worker/rank/parallel/shard_unit.h"
#include "worker/rank/parallel/weight_gather.h"
#include "worker/rank/runtime/engine/stage_blocks.h"

namespace titan::runtime {

// Whether layers' passes become device graphs (block_graphs.h), if the device has them.
struct GraphOptions {
  bool wanted = false;
  std::function<void(const std::string&)> say;  // Called once for each block that cannot be a graph. May be empty.
};

struct ShardingOptions {
  parallel::Precision precision;
  at::ScalarType frozen = at::kFloat;             // Type of the shards of frozen parameters.
  std::string reshard_after_forward = "default";  // always, never or default.
  parallel::CheckpointOptions ac;
  bool cpu_offload = false;  // training.enable_cpu_offload
  bool early_step = false;   // optimizer.early_step_in_backward: update_early() will be called.
  GraphOptions graphs;
  // Gathers the weights that `as_float8` selects, in separate units. Null: all weights are gathered alike.
  std::shared_ptr<const parallel::Float8Gather> float8_gather;
  std::function<bool(const nn::Parameter&)> as_float8;
  std::optional<PipelineShare> pipeline;  // Empty: this rank has all blocks, as one stage.
};

}  // namespace titan::runtime
