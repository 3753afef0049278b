#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/model/model.h"
#include "worker/rank/runtime/engine/sharded_model.h"

// Converts model.converters and [quantize.*] to the recipes of a rank's matmuls and gathers.
namespace titan::runtime {

// Sets the recipe of every weight that config::low_precision_of() converts. The model must be split over the mesh, and
// owns the recipes. Tensorwise scales cover the operand's elements on all ranks with parts of the microbatch, or on
// those of the tensor axis (config::scales_over_all_ranks). InvalidArgument: a part with which this rank multiplies
// does not consist of whole blocks.
absl::Status assign_recipes(const config::JobConfig& config, const comm::DeviceMesh& mesh, model::Model& model);

// Returns whether linear layers have one scale per operand, which tensor ranks can share: the tensorwise recipe.
bool has_tensorwise_scales(const config::JobConfig& config);

// Sets the options' float8_gather for quantize.linear.float8.enable_fsdp_float8_all_gather.
void gather_in_float8(const config::JobConfig& config, const comm::DeviceMesh& mesh, ShardingOptions& options);

// Returns the log lines about the conversion: that matmuls are emulated without being requested, and with
// model.print_after_conversion each weight and its recipe.
std::vector<std::string> conversion_lines(const config::JobConfig& config, const model::Model& model,
                                          at::Device device);

}  // namespace titan::runtime
