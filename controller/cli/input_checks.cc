#include "controller/cli/input_checks.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/io/data_files/check_files.h"
#include "common/io/data_files/cursor_file.h"
#include "common/io/data_files/datasets.h"
#include "common/io/hub/names.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/config_flavor.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/hf_config/vision.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

// Returns the ranks' message without the path, which is printed before it here.
std::string without_path(const absl::Status& status, const std::string& path) {
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, absl::StrCat("dataset_path ", path, ": "));
  absl::ConsumePrefix(&message, absl::StrCat(path, ": "));
  return std::string(message);
}

std::optional<DataProblem> problem_of(const absl::Status& status, const std::string& path) {
  if (status.ok()) return std::nullopt;
  return DataProblem{without_path(status, path), false};
}

}  // namespace

std::optional<DataProblem> check_listed(const std::string& path) {
  if (path.empty() || hub::is_hub_path(path)) return std::nullopt;
  const absl::StatusOr<data_files::ListedFiles> listed = data_files::list_files(path);
  if (listed.ok()) return std::nullopt;
  return DataProblem{without_path(listed.status(), path), absl::IsNotFound(listed.status())};
}

std::optional<DataProblem> check_data(const std::string& dataset, const std::string& path,
                                      const config::DataLoaderSection& settings, std::vector<std::string>& warnings) {
  if (path.empty() || hub::is_hub_path(path)) return std::nullopt;
  if (auto missing = check_listed(path); missing || !config::is_builtin_dataset(dataset)) return missing;
  const data_files::DatasetFormat format =
      data_files::format_from_name(settings.format).value_or(data_files::DatasetFormat::kAuto);
  const absl::StatusOr<data_files::DatasetFiles> found = data_files::dataset_files(dataset, path, format);
  if (!found.ok()) return problem_of(found.status(), path);
  if (!found->warning.empty()) warnings.push_back(found->warning);
  return problem_of(data_files::check_files(*found, {.text_key = settings.text_key,
                                                     .messages_key = settings.messages_key,
                                                     .train_on_all = settings.train_on == "all",
                                                     .max_bad_lines = settings.max_bad_lines}),
                    path);
}

std::string check_place_in_data(const nlohmann::json& train_state, const config::TrainingSection& training) {
  const std::string path = training.dataset_path.value_or("");
  const config::DataLoaderSection& settings = training.dataloader;
  if (path.empty() || hub::is_hub_path(path) || !settings.sources.empty() || settings.order != "global" ||
      !config::is_builtin_dataset(training.dataset)) {
    return "";
  }
  const nlohmann::json::json_pointer place("/dataloader/cursor");
  if (!train_state.is_object() || !train_state.contains(place)) return "";
  const nlohmann::json& cursor = train_state[place];
  if (!cursor.is_object() || !cursor.value("file_name", nlohmann::json()).is_string()) return "";
  const nlohmann::json file = cursor.value("file", nlohmann::json());
  const data_files::DatasetFormat format =
      data_files::format_from_name(settings.format).value_or(data_files::DatasetFormat::kAuto);
  const absl::StatusOr<data_files::DatasetFiles> found = data_files::dataset_files(training.dataset, path, format);
  // The place in a token index is in its shards, which ranks number.
  if (!file.is_number_unsigned() || !found.ok() || found->format == data_files::DatasetFormat::kTitan) return "";
  try {
    return std::string(data_files::check_cursor_file(cursor, file.get<int64_t>(), found->files).message());
  } catch (const nlohmann::json::exception&) {  // The name is not a string: the ranks report the damage.
    return "";
  }
}

namespace {

using nlohmann::json;

json read_json(const std::string& path) {
  std::ifstream in(path);
  return in ? json::parse(in, nullptr, /*allow_exceptions=*/false) : json();
}

// Returns the differences, except for numbers that training takes from the weights.
std::vector<hf_config::ConfigDifference> lasting(const hf_config::HfModel& there, const models::ModelSpec& spec) {
  std::vector<hf_config::ConfigDifference> found =
      hf_config::compare(there, {.spec = spec, .model_type = hf_config::model_type_of(spec)});
  std::erase_if(found, [](const hf_config::ConfigDifference& one) { return one.takeable; });
  return found;
}

// Names the first Titan flavor that the weights fit: flavors that differ only in masks are equally good here.
std::string fitting_flavor(const config::ModelSection& model, const hf_config::HfModel& there) {
  if (model.flavor == config::kConfigFlavor) return "leave it out of [model.override], or train from scratch";
  for (const std::string& flavor : models::flavors(there.spec.name)) {
    if (lasting(there, *models::find(there.spec.name, flavor)).empty()) {
      return absl::StrCat("these are weights of model.name = \"", there.spec.name, "\", model.flavor = \"", flavor,
                          "\"");
    }
  }
  return "set model.flavor = \"config.json\" to train the model of this folder";
}

// Lists up to four numbers that differ between a manifest and a flavor.
std::string words_of(const std::vector<models::SpecDifference>& all) {
  std::vector<std::string> words;
  for (const models::SpecDifference& one : all) {
    if (words.size() == 4) break;
    words.push_back(absl::StrCat(one.name, " ", one.there, ", this model has ", one.here));
  }
  return absl::StrCat(absl::StrJoin(words, "; "), all.size() > words.size() ? "; ..." : "");
}

// Names the first file of an index that the folder lacks, as after an incomplete download.
std::string missing_shard(const std::string& folder) {
  for (const char* index : {"model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json"}) {
    const json files = read_json(absl::StrCat(folder, "/", index));
    const json map = files.is_object() ? files.value("weight_map", json()) : json();
    if (!map.is_object()) continue;
    for (const json& file : map) {
      std::error_code error;
      if (!file.is_string() || std::filesystem::exists(std::filesystem::path(folder) / file.get<std::string>(), error))
        continue;
      return absl::StrCat("lacks ", file.get<std::string>(), ", which ", index, " names");
    }
  }
  return "";
}

// Checks the weights themselves, whatever lies next to them.
WeightsMismatch misfit_of_weights(const std::string& folder, const models::ModelSpec& spec) {
  if (std::string missing = missing_shard(folder); !missing.empty()) return {missing, "complete the folder"};
  const absl::StatusOr<std::string> misfit = hf_config::embedding_misfit(folder, spec);
  return {misfit.ok() ? *misfit : std::string(misfit.status().message()), ""};
}

}  // namespace

namespace {

// Weights may lack the rows of tokens that the job adds: then only the rest is compared.
void allow_fewer_rows(const config::ModelSection& model, int64_t stored, models::ModelSpec& spec) {
  if (model.overrides.vocab_size && stored > 0) spec.vocab_size = std::min(spec.vocab_size, stored);
}

}  // namespace

WeightsMismatch hf_folder_mismatch(const config::ModelSection& model, const std::string& folder) {
  auto spec = config::resolve_model(model);
  const json config = read_json(folder + "/config.json");
  if (!spec.ok()) return {};
  if (config.is_null()) return model.overrides.vocab_size ? WeightsMismatch() : misfit_of_weights(folder, *spec);
  const auto there = hf_config::read_model(config);
  if (!there.ok()) return {std::string(there.status().message()), ""};
  allow_fewer_rows(model, there->spec.vocab_size, *spec);
  const std::vector<hf_config::ConfigDifference> found = lasting(*there, *spec);
  if (found.empty()) return misfit_of_weights(folder, *spec);
  return {absl::StrCat("config.json says ", hf_config::text_of(found)), fitting_flavor(model, *there)};
}

WeightsMismatch tower_mismatch(const config::ModelSection& model, const std::string& folder) {
  const auto spec = config::resolve_model(model);
  const json config = read_json(folder + "/config.json");
  if (!spec.ok() || !spec->vision || config.is_null()) return {};
  const auto there = hf_config::read_vision(config);
  if (!there.ok()) return {std::string(there.status().message()), ""};
  const std::string found = hf_config::tower_differences(there->spec, *spec->vision);
  return {found.empty() ? "" : absl::StrCat("config.json says ", found), ""};
}

WeightsMismatch step_mismatch(const config::ModelSection& model, const std::string& step_folder) {
  auto spec = config::resolve_model(model);
  const json manifest = read_json(step_folder + "/manifest.json");
  if (!spec.ok() || !manifest.is_object() || !manifest.value("model", json()).is_object()) return {};
  const json& stored = manifest["model"];
  allow_fewer_rows(model, stored.value("vocab_size", int64_t{0}), *spec);
  const auto found = models::differences(stored, models::with_weights_numbers(stored, *spec));
  if (found.empty()) return {};
  return {
      absl::StrCat("holds ", models::label(stored), ", this is ", spec->name, " ", spec->flavor, ": ", words_of(found)),
      "set model.name and model.flavor to the step's"};
}

}  // namespace titan::cli
