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

// What the whole model's trained parameters go by, the same on every rank. Errors: InvalidArgument, about
// optimizer.param_groups.
absl::StatusOr<config::UpdateRules> update_rules_of(const config::Optimizer& optimizer, const ShardedModel& model);

// Of the parameters that live here. Model, mesh and device outlive it.
std::unique_ptr<optim::Optimizer> build_optimizer(const config::JobConfig& config, const config::UpdateRules& rules,
                                                  ShardedModel& model, const comm::DeviceMesh& mesh,
                                                  device::Device& device);

// One line for each rule, for the log; none where there is one only.
std::vector<std::string> describe_rules(const config::UpdateRules& rules);
// The learning rate of each rule where there are several, by its metric's name: "lr/group_0", ...
std::vector<std::pair<std::string, double>> learning_rates(const config::UpdateRules& rules, double factor);

// What AdamW's and Adam's moments of matrices are kept as: float32, bfloat16, float64, 8bit.
std::string state_dtype(const config::JobConfig& config);

// What whoever reads the log must hear of states that were saved as `saved`, and go on as this job's; empty: nothing.
std::string conversion_notice(const std::string& saved, const config::JobConfig& config);

}  // namespace titan::runtime
