#include "controller/cli/model_folder.h"

#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

using nlohmann::json;

json read_json(const std::string& path) {
  std::ifstream in(path);
  return in ? json::parse(in, nullptr, /*allow_exceptions=*/false) : json();
}

// Without the numbers that training takes from the weights.
std::vector<hf_config::Difference> lasting(const hf_config::Model& there, const models::ModelSpec& spec) {
  std::vector<hf_config::Difference> found =
      hf_config::compare(there, {.spec = spec, .model_type = hf_config::model_type_of(spec)});
  std::erase_if(found, [](const hf_config::Difference& one) { return one.takeable; });
  return found;
}

// The flavors of Titan's that the weights fit: several differ in masks alone, of which the first is enough.
std::string fitting_flavor(const hf_config::Model& there) {
  for (const std::string& flavor : models::flavors(there.spec.name)) {
    if (lasting(there, *models::find(there.spec.name, flavor)).empty()) {
      return absl::StrCat("these are weights of model.name = \"", there.spec.name, "\", model.flavor = \"", flavor,
                          "\"");
    }
  }
  return "no flavor of Titan's has these numbers: docs/howto/add-a-model.md adds one";
}

// Numbers that a manifest and a flavor do not share, in a few words.
std::string words_of(const std::vector<models::Difference>& all) {
  std::vector<std::string> words;
  for (const models::Difference& one : all) {
    if (words.size() == 4) break;
    words.push_back(absl::StrCat(one.name, " ", one.there, ", this model has ", one.here));
  }
  return absl::StrCat(absl::StrJoin(words, "; "), all.size() > words.size() ? "; ..." : "");
}

// What the weights themselves say, whatever lies beside them.
Misfit misfit_of_weights(const std::string& folder, const models::ModelSpec& spec) {
  const absl::StatusOr<std::string> misfit = hf_config::embedding_misfit(folder, spec);
  return {misfit.ok() ? *misfit : std::string(misfit.status().message()), ""};
}

}  // namespace

Misfit misfit_of_hf_folder(const config::Model& model, const std::string& folder) {
  const auto spec = config::chosen_model(model);
  const json config = read_json(folder + "/config.json");
  if (!spec.ok()) return {};
  if (config.is_null()) return misfit_of_weights(folder, *spec);
  const auto there = hf_config::read_model(config);
  if (!there.ok()) return {std::string(there.status().message()), ""};
  const std::vector<hf_config::Difference> found = lasting(*there, *spec);
  if (found.empty()) return misfit_of_weights(folder, *spec);
  return {absl::StrCat("config.json says ", hf_config::text_of(found)), fitting_flavor(*there)};
}

Misfit misfit_of_step(const config::Model& model, const std::string& step_folder) {
  const auto spec = config::chosen_model(model);
  const json manifest = read_json(step_folder + "/manifest.json");
  if (!spec.ok() || !manifest.is_object() || !manifest.value("model", json()).is_object()) return {};
  const json& stored = manifest["model"];
  const auto found = models::differences(stored, models::with_positions(stored, *spec));
  if (found.empty()) return {};
  return {
      absl::StrCat("holds ", models::label(stored), ", this is ", spec->name, " ", spec->flavor, ": ", words_of(found)),
      "set model.name and model.flavor to the step's"};
}

}  // namespace titan::cli
