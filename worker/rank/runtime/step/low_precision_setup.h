#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/model/model.h"
#include "worker/rank/runtime/engine/sharded_model.h"

// From model.converters and [quantize.*] to the recipes of a rank's products and gathers.
namespace titan::runtime {

// Names the recipe of every weight that config::low_precision_of() converts; the model has been split over the mesh and
// keeps the recipes. Tensorwise scales cover the operand's numbers on all ranks that have parts of the microbatch or on
// those of the tensor axis (config::scales_over_all_ranks). Errors: InvalidArgument where a part that this rank
// multiplies by has no whole blocks.
absl::Status name_recipes(const config::JobConfig& config, const comm::DeviceMesh& mesh, model::Model& model);

// Whether linear layers have one scale an operand, which tensor ranks can share: the tensorwise recipe.
bool has_tensorwise_scales(const config::JobConfig& config);

// Fills the options' float8_gather for quantize.linear.float8.enable_fsdp_float8_all_gather.
void gather_in_float8(const config::JobConfig& config, const comm::DeviceMesh& mesh, ShardingOptions& options);

// What a job's log says of the conversion: that products are emulated though nobody asked for it, and with
// model.print_after_conversion each weight and its recipe.
std::vector<std::string> conversion_lines(const config::JobConfig& config, const model::Model& model,
                                          at::Device device);

}  // namespace titan::runtime
