#pragma once

// Resolves how each parameter of a model is updated, from [optimizer] and its param_groups. Pure, so that the
// controller can check what a rank will do.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/models/sizes.h"

namespace titan::config {

// Options of one group's parameters.
struct UpdateRule {
  std::string name;     // AdamW, Adam, Muon
  std::string pattern;  // Pattern of its group; empty: no group.
  double lr = 0;        // Peak, which the schedule multiplies by its factor.
  double weight_decay = 0;
  double beta1 = 0, beta2 = 0, eps = 0;  // AdamW, Adam
  double momentum = 0;                   // Only for Muon, as are the members below.
  bool nesterov = true;
  int ns_steps = 0;
  std::string adjust_lr;
};

struct UpdateRules {
  std::vector<UpdateRule> rules;  // In the order of param_groups, the rule for the rest last. Each rule has a
                                  // parameter.
  std::vector<size_t> of;         // Index of each parameter's rule.

  bool use(const std::string& name) const;
};

// Whether [optimizer] or a group names this optimizer.
bool uses_optimizer(const OptimizerSection& optimizer, const std::string& name);

// A problem with a group, for messages about optimizer.param_groups.
struct GroupProblem {
  std::string value;  // Pattern of the group.
  std::string message;
  std::string suggestion;
};

// Returns problems of the groups that do not depend on the model.
std::vector<GroupProblem> check_groups(const OptimizerSection& optimizer);
// Also checks them against the model: a pattern that matches no parameter, only parameters of earlier groups, or one
// that is not a matrix and that the group gives to Muon.
std::vector<GroupProblem> check_groups(const OptimizerSection& optimizer,
                                       const std::vector<models::ParameterSpec>& parameters);

// Returns the rule of each parameter. Requires groups without problems. Where Muon comes from [optimizer] rather than
// from a group, it updates hidden matrices (is_hidden_matrix()), and AdamW with the same options the rest.
UpdateRules update_rules(const OptimizerSection& optimizer, const std::vector<models::ParameterSpec>& parameters);

// Whether the parameter is a matrix, or a stack of one matrix per expert.
bool is_matrix(const models::ParameterSpec& parameter);
// Whether it is a matrix of a transformer layer, except its router's: not an embedding or head. Muon is made for these.
// The rows of the others are separate vectors, looked up or scored one by one (Jordan et al.,
// https://kellerjordan.github.io/posts/muon).
bool is_hidden_matrix(const models::ParameterSpec& parameter);

}  // namespace titan::config
