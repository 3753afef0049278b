#include "common/plan/config/config_flavor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/file.h"
#include "common/plan/hf_config/keys.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/spec_checks.h"
#include "common/plan/models/spec_json.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = 1 << 24;

absl::StatusOr<hf_config::HfModel> read_folder(const std::string& folder) {
  storage::Files& files = storage::posix_files();
  const std::string path = storage::join_path(hf_config::weights_folder(files, folder), "config.json");
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, kMaxBytes));
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  return hf_config::read_model(config);
}

}  // namespace

void read_config_flavor(LoadedConfig& loaded, bool reads_files, std::vector<Problem>& problems) {
  ModelSection& model = loaded.config.model;
  if (model.flavor != kConfigFlavor || model.spec) return;
  const auto problem = [&](const char* key, const std::string& value, std::string message, std::string suggestion) {
    const auto origin = loaded.origins.find(key);
    problems.push_back({.origin = origin == loaded.origins.end() ? Origin{} : origin->second,
                        .key = key,
                        .value = value,
                        .message = std::move(message),
                        .suggestion = std::move(suggestion)});
  };
  if (!reads_files) {
    return problem("model.flavor", model.flavor, "needs the numbers of the model in model.spec",
                   "submit the job with titanctl, which reads them from the folder");
  }
  const absl::StatusOr<hf_config::HfModel> read = read_folder(model.hf_assets_path);
  if (!read.ok()) {
    return problem("model.hf_assets_path", model.hf_assets_path, std::string(read.status().message()),
                   "model.flavor = \"config.json\" reads the model from that folder");
  }
  if (loaded.origins.contains("model.name") && model.name != read->spec.name) {
    return problem("model.name", model.name,
                   absl::StrCat("config.json in ", model.hf_assets_path, " describes a model of the family ",
                                read->spec.name, " (model_type ", read->model_type, ")"),
                   "leave it out");
  }
  model.name = read->spec.name;
  model.spec = models::to_json(read->spec).dump();
  for (const std::string& note : read->notes)
    loaded.warnings.push_back(absl::StrCat(storage::join_path(model.hf_assets_path, "config.json"), ": ", note));
}

absl::StatusOr<models::ModelSpec> spec_of_config_flavor(const ModelSection& model) {
  if (!model.spec) {
    return absl::InvalidArgumentError(
        "model.flavor: \"config.json\" needs the numbers of the model in model.spec: titanctl and titan-rank read them "
        "from model.hf_assets_path");
  }
  const json values = json::parse(*model.spec, nullptr, /*allow_exceptions=*/false);
  if (hf_config::is_nested_deeper(values, hf_config::kMostLevels))
    return absl::InvalidArgumentError("model.spec: nested too deeply");
  absl::StatusOr<models::ModelSpec> spec = models::from_json(values);
  if (!spec.ok()) return annotate(spec.status(), "model.spec");
  const std::string wrong = models::inconsistency(*spec);
  if (!wrong.empty()) return absl::InvalidArgumentError(absl::StrCat("model.spec: ", wrong));
  if (spec->name != model.name) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.spec: is of the family ", spec->name, ", but model.name is ", model.name));
  }
  return spec;
}

}  // namespace titan::config
