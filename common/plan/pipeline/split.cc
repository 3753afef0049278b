#include "common/plan/pipeline/split.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/text/counted.h"
#include "common/plan/pipeline/keys.h"

namespace titan::pipeline {
namespace {

std::string layer(std::int64_t index) { return absl::StrCat("layers.", index); }

// torchtitan's module names in the order of computation.
std::vector<std::string> modules_of(std::int64_t n_layers) {
  std::vector<std::string> names = {"tok_embeddings"};
  for (std::int64_t i = 0; i < n_layers; ++i) names.push_back(layer(i));
  names.insert(names.end(), {"norm", "output"});
  return names;
}

absl::Status check_weight(const char* key, std::int64_t less, const char* what, std::int64_t per_stage) {
  if (less <= per_stage) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, ": the ", what, " counts as ", counted(less, "layer"),
                                                 ", but a stage has only ", per_stage, "; use at most ", per_stage,
                                                 " or fewer stages"));
}

}  // namespace

absl::StatusOr<Split> split_layers(int stages, std::int64_t n_layers, std::int64_t first_less, std::int64_t last_less) {
  if (stages < 1) return absl::InvalidArgumentError("parallelism.pipeline_parallel_degree: needs at least one stage");
  if (stages == 1) first_less = last_less = 0;  // Nothing to balance.
  const std::int64_t effective = n_layers + first_less + last_less;
  const std::int64_t per_stage = effective / stages;
  if (per_stage == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.pipeline_parallel_degree: ", counted(stages, "stage"), " for ", counted(effective, "layer"),
        " (embedding and output count); use fewer stages, at most ", effective));
  }
  if (absl::Status bad =
          check_weight("parallelism.pipeline_parallel_first_stage_less_layers", first_less, "embedding", per_stage);
      !bad.ok()) {
    return bad;
  }
  if (absl::Status bad =
          check_weight("parallelism.pipeline_parallel_last_stage_less_layers", last_less, "output", per_stage);
      !bad.ok()) {
    return bad;
  }
  Split split(stages);
  std::int64_t next = 0;
  for (int stage = 0; stage < stages; ++stage) {
    std::int64_t layers = per_stage + (stage < effective % stages ? 1 : 0);
    if (stage == 0) {
      split[stage].push_back("tok_embeddings");
      layers -= first_less;
    }
    if (stage == stages - 1) layers -= last_less;
    for (std::int64_t i = 0; i < layers; ++i) split[stage].push_back(layer(next++));
    if (stage == stages - 1) split[stage].push_back("output");
  }
  return split;
}

absl::StatusOr<Split> split_by_names(const std::vector<std::vector<std::string>>& parts, std::int64_t n_layers) {
  const std::vector<std::string> modules = modules_of(n_layers);
  std::map<std::string, std::size_t> part_of;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].empty()) return absl::InvalidArgumentError(absl::StrCat(kPartsKey, "part ", part, " is empty"));
    for (const std::string& name : parts[part]) {
      if (std::find(modules.begin(), modules.end(), name) == modules.end()) {
        return absl::InvalidArgumentError(absl::StrCat(kPartsKey, "part ", part, " names \"", name,
                                                       "\", which the model does not have; its modules are "
                                                       "tok_embeddings, layers.0 to ",
                                                       layer(n_layers - 1), ", norm and output"));
      }
      if (const auto [seen, fresh] = part_of.emplace(name, part); !fresh) {
        return absl::InvalidArgumentError(
            absl::StrCat(kPartsKey, name, " is in part ", seen->second, " and again in part ", part));
      }
    }
  }
  Split split(parts.size());
  std::size_t last = 0;
  std::string before;
  for (const std::string& name : modules) {
    const auto found = part_of.find(name);
    if (found == part_of.end()) return absl::InvalidArgumentError(absl::StrCat(kPartsKey, name, " is in no part"));
    if (found->second < last) {
      return absl::InvalidArgumentError(absl::StrCat(kPartsKey, name, " is in part ", found->second, ", before ",
                                                     before, " in part ", last, "; parts follow the model's order"));
    }
    if (name == "output" && found->second != last)
      return absl::InvalidArgumentError(absl::StrCat(kPartsKey, "norm is in part ", last, " and output in part ",
                                                     found->second, "; they must be in the same part"));
    last = found->second;
    before = name;
    if (name != "norm") split[last].push_back(name);
  }
  return split;
}

}  // namespace titan::pipeline
