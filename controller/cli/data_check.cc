#include "controller/cli/data_check.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/io/data_files/check_files.h"
#include "common/io/data_files/cursor_file.h"
#include "common/io/data_files/datasets.h"
#include "common/io/hub/names.h"
#include "common/plan/config/assets.h"

namespace titan::cli {
namespace {

// As the ranks say it, without the path, which stands before it here.
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

std::optional<DataProblem> check_listed(const std::string& path) {
  const absl::StatusOr<data_files::ListedFiles> listed = data_files::list_files(path);
  if (listed.ok()) return std::nullopt;
  return DataProblem{without_path(listed.status(), path), absl::IsNotFound(listed.status())};
}

}  // namespace

std::optional<DataProblem> check_data(const std::string& dataset, const std::string& path,
                                      const config::DataLoader& settings, std::vector<std::string>& warnings) {
  if (path.empty() || hub::is_hub_path(path)) return std::nullopt;
  if (auto missing = check_listed(path); missing || !config::is_titans_dataset(dataset)) return missing;
  const data_files::Format format = data_files::format_from_name(settings.format).value_or(data_files::Format::kAuto);
  const absl::StatusOr<data_files::DatasetFiles> found = data_files::dataset_files(dataset, path, format);
  if (!found.ok()) return problem_of(found.status(), path);
  if (!found->warning.empty()) warnings.push_back(found->warning);
  return problem_of(data_files::check_files(*found, {.text_key = settings.text_key,
                                                     .messages_key = settings.messages_key,
                                                     .train_on_all = settings.train_on == "all",
                                                     .max_bad_lines = settings.max_bad_lines}),
                    path);
}

std::string check_place_in_data(const nlohmann::json& train_state, const config::Training& training) {
  const std::string path = training.dataset_path.value_or("");
  const config::DataLoader& settings = training.dataloader;
  if (path.empty() || hub::is_hub_path(path) || !settings.sources.empty() || settings.order != "global" ||
      !config::is_titans_dataset(training.dataset)) {
    return "";
  }
  const nlohmann::json::json_pointer place("/dataloader/cursor");
  if (!train_state.is_object() || !train_state.contains(place)) return "";
  const nlohmann::json& cursor = train_state[place];
  if (!cursor.is_object() || !cursor.value("file_name", nlohmann::json()).is_string()) return "";
  const nlohmann::json file = cursor.value("file", nlohmann::json());
  const data_files::Format format = data_files::format_from_name(settings.format).value_or(data_files::Format::kAuto);
  const absl::StatusOr<data_files::DatasetFiles> found = data_files::dataset_files(training.dataset, path, format);
  // The place in a token index is in its shards, which ranks number.
  if (!file.is_number_unsigned() || !found.ok() || found->format == data_files::Format::kTitan) return "";
  try {
    return std::string(data_files::check_cursor_file(cursor, file.get<int64_t>(), found->files).message());
  } catch (const nlohmann::json::exception&) {  // A name that is no text: the ranks say what is damaged.
    return "";
  }
}

}  // namespace titan::cli
