#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/update_rules.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/device/device.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/runtime/engine/sharded_model.h"

namespace titan::runtime {

// Returns the update rules of the whole model's trained parameters, the same on every rank. InvalidArgument: about
// optimizer.param_groups.
absl::StatusOr<config::UpdateRules> update_rules_of(const config::OptimizerSection& optimizer,
                                                    const ShardedModel& model);

// Makes the optimizer of this rank's parameters. Model, mesh and device must outlive it.
std::unique_ptr<optim::Optimizer> build_optimizer(const config::JobConfig& config, const config::UpdateRules& rules,
                                                  ShardedModel& model, const comm::DeviceMesh& mesh,
                                                  device::Device& device);

// Returns one log line per rule, or none if there is only one rule.
std::vector<std::string> describe_rules(const config::UpdateRules& rules);
// Returns the learning rate of each rule by its metric's name ("lr/group_0", ...), or none if there is only one rule.
std::vector<std::pair<std::string, double>> learning_rates(const config::UpdateRules& rules, double factor);

// Returns the type of AdamW's and Adam's moments of matrices: float32, bfloat16, float64 or 8bit.
std::string state_dtype(const config::JobConfig& config);

// Returns a notice for the log if states saved as `saved` continue in another type in this job; otherwise empty.
std::string conversion_notice(const std::string& saved, const config::JobConfig& config);

}  // namespace titan::runtime
