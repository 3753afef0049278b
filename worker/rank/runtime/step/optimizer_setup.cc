#include "worker/rank/runtime/step/optimizer_setup.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "worker/rank/runtime/engine/matrix_parts.h"

namespace titan::runtime {
namespace {

optim::OptimizerOptions options_of(const config::UpdateRule& rule, const config::JobConfig& config) {
  const config::OptimizerSection& optimizer = config.optimizer;
  return {.name = rule.name,
          .implementation = optimizer.implementation,
          .beta1 = rule.beta1,
          .beta2 = rule.beta2,
          .eps = rule.eps,
          .weight_decay = rule.weight_decay,
          .lr = rule.lr,
          .state_dtype = optimizer.state_dtype,
          .stochastic_rounding = optimizer.stochastic_rounding,
          .seed = static_cast<uint64_t>(config.debug.seed.value_or(0)),
          .momentum = rule.momentum,
          .nesterov = rule.nesterov,
          .ns_steps = rule.ns_steps,
          .adjust_lr = rule.adjust_lr};
}

}  // namespace

absl::StatusOr<config::UpdateRules> update_rules_of(const config::OptimizerSection& optimizer,
                                                    const ShardedModel& model) {
  const std::vector<models::ParameterSpec> parameters = model.whole_parameters();
  for (const config::GroupProblem& problem : config::check_groups(optimizer, parameters)) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.param_groups: \"", problem.value, "\" ", problem.message,
                                                   problem.suggestion.empty() ? "" : "; ", problem.suggestion));
  }
  return config::update_rules(optimizer, parameters);
}

std::unique_ptr<optim::Optimizer> build_optimizer(const config::JobConfig& config, const config::UpdateRules& rules,
                                                  ShardedModel& model, const comm::DeviceMesh& mesh,
                                                  device::Device& device) {
  std::map<std::string, size_t> rule_of;
  const std::vector<models::ParameterSpec> parameters = model.whole_parameters();
  for (size_t i = 0; i < parameters.size(); ++i) rule_of[parameters[i].fqn] = rules.of[i];
  std::vector<optim::Slot> slots = model.optimizer_slots();
  for (optim::Slot& slot : slots) slot.group = rule_of.at(slot.fqn);
  std::vector<optim::OptimizerOptions> groups;
  for (const config::UpdateRule& rule : rules.rules) groups.push_back(options_of(rule, config));
  optim::MatrixMesh matrices;
  if (rules.use("Muon")) {
    matrices.group = &mesh.group(mesh::Axis::kHolders);
    matrices.device = device.torch_device();
    matrices.parameters = matrix_parameters(model.trained(), mesh.mesh(), mesh.rank());
  }
  return optim::make_grouped_optimizer(std::move(groups), std::move(slots), std::move(matrices));
}

std::vector<std::string> describe_rules(const config::UpdateRules& rules) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < rules.rules.size() && rules.rules.size() > 1; ++i) {
    const config::UpdateRule& rule = rules.rules[i];
    const auto count = std::count(rules.of.begin(), rules.of.end(), i);
    lines.push_back(absl::StrCat("Optimizer group ", i, ": ", rule.name, ", lr ", rule.lr, ", weight decay ",
                                 rule.weight_decay, ", ", counted(count, "parameter"),
                                 rule.pattern.empty() ? "" : absl::StrCat(" matched by \"", rule.pattern, "\"")));
  }
  return lines;
}

std::vector<std::pair<std::string, double>> learning_rates(const config::UpdateRules& rules, double factor) {
  std::vector<std::pair<std::string, double>> rates;
  for (size_t i = 0; i < rules.rules.size() && rules.rules.size() > 1; ++i)
    rates.emplace_back(absl::StrCat("lr/group_", i), rules.rules[i].lr * factor);
  return rates;
}

std::string state_dtype(const config::JobConfig& config) {
  return config.optimizer.state_dtype == "auto" ? config.training.dtype : config.optimizer.state_dtype;
}

std::string conversion_notice(const std::string& saved, const config::JobConfig& config) {
  const std::string here = state_dtype(config);
  if (saved == here) return "";
  const auto adjective = [](const std::string& type) { return type == "8bit" ? "8-bit codes" : type; };
  return absl::StrCat("the checkpoint's optimizer states were kept as ", adjective(saved), "; they continue as ",
                      adjective(here), " (optimizer.state_dtype = ", config.optimizer.state_dtype, ")");
}

}  // namespace titan::runtime
