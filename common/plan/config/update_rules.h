#pragma once

// How each parameter of a model is updated: [optimizer] with its param_groups, settled. Pure, so that the controller
// checks what a rank will do.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/models/sizes.h"

namespace titan::config {

// What the parameters of one group go by.
struct UpdateRule {
  std::string name;     // AdamW, Adam, Muon
  std::string pattern;  // Of its group; empty: of none.
  double lr = 0;        // Peak; the schedule's factor times it.
  double weight_decay = 0;
  double beta1 = 0, beta2 = 0, eps = 0;  // AdamW, Adam
  double momentum = 0;                   // Muon, as all that follow
  bool nesterov = true;
  int ns_steps = 0;
  std::string adjust_lr;
};

struct UpdateRules {
  std::vector<UpdateRule> rules;  // In the order of param_groups, what no group takes last; each has a parameter.
  std::vector<size_t> of;         // The rule of each parameter.

  bool use(const std::string& name) const;
};

// Whether [optimizer] or a group names this optimizer.
bool asks_for(const Optimizer& optimizer, const std::string& name);

// One thing that is wrong with a group, for messages about optimizer.param_groups.
struct GroupProblem {
  std::string value;  // Its pattern.
  std::string message;
  std::string suggestion;
};

// What is wrong with the groups themselves, or nothing.
std::vector<GroupProblem> check_groups(const Optimizer& optimizer);
// The same with the model that they are for: a pattern that finds no parameter, or none that earlier groups leave, or
// one that Muon cannot take.
std::vector<GroupProblem> check_groups(const Optimizer& optimizer, const std::vector<models::Tensor>& parameters);

// For groups without problems. Where Muon was not asked for by a group, it takes hidden matrices (is_hidden_matrix()),
// and AdamW with the same options the rest.
UpdateRules update_rules(const Optimizer& optimizer, const std::vector<models::Tensor>& parameters);

// A matrix, or one of every expert.
bool is_matrix(const models::Tensor& parameter);
// A matrix of a transformer layer that is not its router's: no embedding, no head. What Muon was made for: the others'
// rows are separate vectors, looked up or scored one by one (Jordan et al., https://kellerjordan.github.io/posts/muon).
bool is_hidden_matrix(const models::Tensor& parameter);

}  // namespace titan::config
