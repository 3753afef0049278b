#include "common/plan/config/update_rules.h"

#include <algorithm>
#include <optional>
#include <regex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/nearest.h"

namespace titan::config {
namespace {

constexpr size_t kMaxPatternLength = 1000;

// Polynomial matching bounds the time by pattern and name length: a submitting user writes patterns that the controller
// runs.
std::optional<std::regex> compile(const std::string& pattern) {
  if (pattern.size() > kMaxPatternLength) return std::nullopt;
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error&) {
    return std::nullopt;
  }
}

// Returns the group of each parameter: the first one that matches its name, or none.
std::vector<std::optional<size_t>> group_of(const OptimizerSection& optimizer,
                                            const std::vector<models::ParameterSpec>& parameters) {
  std::vector<std::optional<size_t>> taken(parameters.size());
  for (size_t group = 0; group < optimizer.param_groups.size(); ++group) {
    const std::optional<std::regex> pattern = compile(optimizer.param_groups[group].pattern);
    for (size_t i = 0; pattern && i < parameters.size(); ++i) {
      if (!taken[i] && std::regex_search(parameters[i].fqn, *pattern)) taken[i] = group;
    }
  }
  return taken;
}

bool finds_any(const std::regex& pattern, const std::vector<models::ParameterSpec>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const models::ParameterSpec& one) { return std::regex_search(one.fqn, pattern); });
}

// Strips regular-expression syntax from the pattern, to compare it with names.
std::string without_syntax(const std::string& pattern) {
  std::string text;
  for (const char c : pattern) {
    if (!absl::StrContains("^$\\()[]{}|*+?", std::string(1, c))) text += c;
  }
  return text;
}

std::string names_near(const std::string& pattern, const std::vector<models::ParameterSpec>& parameters) {
  std::vector<std::string> names, inner;
  for (const models::ParameterSpec& one : parameters) {
    names.push_back(one.fqn);
    // "attention.wq.weight" of any layer, and "attention.wq".
    const size_t layer = absl::StartsWith(one.fqn, "layers.") ? one.fqn.find('.', sizeof("layers.") - 1) : one.fqn.npos;
    if (layer == one.fqn.npos) continue;
    inner.push_back(one.fqn.substr(layer + 1));
    inner.push_back(inner.back().substr(0, inner.back().rfind('.')));
  }
  const std::string given = without_syntax(pattern);
  std::string near = nearest(given, names);
  if (near.empty()) near = nearest(given, inner);
  if (!near.empty()) return absl::StrCat("did you mean \"", near, "\"?");
  return names.empty() ? "" : absl::StrCat("names look like ", names[std::min<size_t>(1, names.size() - 1)]);
}

UpdateRule rule_of(const OptimizerSection& base, const ParamGroup* group) {
  const ParamGroup own = group != nullptr ? *group : ParamGroup();
  UpdateRule rule;
  rule.name = own.name.value_or(base.name);
  rule.pattern = own.pattern;
  rule.lr = own.lr.value_or(base.lr * own.lr_factor.value_or(1));
  rule.weight_decay = own.weight_decay.value_or(base.weight_decay);
  rule.beta1 = own.beta1.value_or(base.beta1);
  rule.beta2 = own.beta2.value_or(base.beta2);
  rule.eps = own.eps.value_or(base.eps);
  rule.momentum = own.momentum.value_or(base.momentum);
  rule.nesterov = own.nesterov.value_or(base.nesterov);
  rule.ns_steps = own.ns_steps.value_or(base.ns_steps);
  rule.adjust_lr = own.adjust_lr.value_or(base.adjust_lr);
  return rule;
}

void check_numbers(const ParamGroup& group, std::vector<GroupProblem>& problems) {
  if (group.lr && group.lr_factor) {
    problems.push_back({group.pattern, "sets both lr and lr_factor", "keep one"});
  }
  const auto below_one = [&](const char* name, const std::optional<double>& value) {
    if (value == 1.0) problems.push_back({group.pattern, absl::StrCat(name, " must be below 1"), ""});
  };
  below_one("beta1", group.beta1);
  below_one("beta2", group.beta2);
  below_one("momentum", group.momentum);
}

}  // namespace

bool UpdateRules::use(const std::string& name) const {
  return std::any_of(rules.begin(), rules.end(), [&](const UpdateRule& rule) { return rule.name == name; });
}

bool uses_optimizer(const OptimizerSection& optimizer, const std::string& name) {
  return optimizer.name == name || std::any_of(optimizer.param_groups.begin(), optimizer.param_groups.end(),
                                               [&](const ParamGroup& group) { return group.name == name; });
}

bool is_matrix(const models::ParameterSpec& parameter) {
  return parameter.shape.size() == (parameter.role == models::ParameterRole::kExpert ? 3 : 2);
}

bool is_hidden_matrix(const models::ParameterSpec& parameter) {
  return is_matrix(parameter) && absl::StartsWith(parameter.fqn, "layers.") &&
         parameter.role != models::ParameterRole::kRouter && !absl::StrContains(parameter.fqn, ".router.");
}

std::vector<GroupProblem> check_groups(const OptimizerSection& optimizer) {
  std::vector<GroupProblem> problems;
  for (const ParamGroup& group : optimizer.param_groups) {
    if (!compile(group.pattern)) {
      problems.push_back(
          {group.pattern,
           absl::StrCat("is not a regular expression (ECMAScript's, of at most ", kMaxPatternLength, " characters)"),
           ""});
    }
    check_numbers(group, problems);
  }
  return problems;
}

std::vector<GroupProblem> check_groups(const OptimizerSection& optimizer,
                                       const std::vector<models::ParameterSpec>& parameters) {
  std::vector<GroupProblem> problems = check_groups(optimizer);
  if (!problems.empty()) return problems;
  const std::vector<std::optional<size_t>> taken = group_of(optimizer, parameters);
  for (size_t i = 0; i < optimizer.param_groups.size(); ++i) {
    const ParamGroup& group = optimizer.param_groups[i];
    const std::string& pattern = group.pattern;
    if (!finds_any(*compile(pattern), parameters)) {
      problems.push_back({pattern, "matches no parameter of the model", names_near(pattern, parameters)});
    } else if (std::find(taken.begin(), taken.end(), i) == taken.end()) {
      problems.push_back({pattern, "matches only parameters of earlier groups", "put it before them"});
    }
    if (group.name != "Muon") continue;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (taken[p] != i || is_matrix(parameters[p])) continue;
      problems.push_back({pattern, absl::StrCat("gives ", parameters[p].fqn, ", which is not a matrix, to Muon"),
                          "narrow the pattern, or put these parameters into an earlier group"});
      break;
    }
  }
  return problems;
}

UpdateRules update_rules(const OptimizerSection& optimizer, const std::vector<models::ParameterSpec>& parameters) {
  const std::vector<std::optional<size_t>> taken = group_of(optimizer, parameters);
  // Two places per group: its own rule, and AdamW's for parameters that an inherited Muon does not update.
  const size_t none = optimizer.param_groups.size();
  const auto place_of = [&](size_t p) {
    const size_t group = taken[p].value_or(none);
    const bool inherits = group == none || !optimizer.param_groups[group].name;
    return 2 * group + (inherits && optimizer.name == "Muon" && !is_hidden_matrix(parameters[p]) ? 1 : 0);
  };
  UpdateRules all;
  std::vector<std::optional<size_t>> index(2 * (none + 1));
  for (size_t p = 0; p < parameters.size(); ++p) index[place_of(p)] = 0;
  for (size_t place = 0; place < index.size(); ++place) {
    if (!index[place]) continue;
    index[place] = all.rules.size();
    all.rules.push_back(rule_of(optimizer, place / 2 < none ? &optimizer.param_groups[place / 2] : nullptr));
    if (place % 2 == 1) all.rules.back().name = "AdamW";
  }
  for (size_t p = 0; p < parameters.size(); ++p) all.of.push_back(*index[place_of(p)]);
  return all;
}

}  // namespace titan::config
