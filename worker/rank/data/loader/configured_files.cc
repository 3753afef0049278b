#include "worker/rank/data/loader/configured_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/nearest.h"
#include "common/io/data_files/check_files.h"
#include "common/io/data_files/datasets.h"
#include "worker/rank/data/documents/hub/hub_files.h"
#include "worker/rank/data/plugin/registry.h"

namespace titan::data {
namespace {

struct Found {
  data_files::DatasetFiles files;
  std::shared_ptr<data_files::RemoteFiles> remote;
};

absl::StatusOr<Found> found_in_hub(const std::string& dataset, const std::string& dataset_path,
                                   data_files::DatasetFormat format, const std::string& record_folder) {
  absl::StatusOr<hub::DatasetPath> parsed = hub::parse_dataset_path(dataset_path);
  if (!parsed.ok()) return annotate(parsed.status(), dataset_path);
  hub::DatasetPath path = *std::move(parsed);
  if (path.place.empty() && path.repo.name() == "c4") path.place = "en";  // The same as for a mirror on disk.
  absl::StatusOr<hub::StreamOptions> options = hub_options();
  if (!options.ok()) return annotate(options.status(), dataset_path);
  data_files::ListedFiles listed{.chosen = names_files(path.place)};
  TITAN_ASSIGN_OR_RETURN(const std::vector<HubFile> there, hub_files(*options, path, record_folder));
  for (const HubFile& file : there) listed.files.push_back(file.path);
  TITAN_ASSIGN_OR_RETURN(data_files::DatasetFiles files,
                         data_files::choose_files(dataset, dataset_path, listed, format));
  if (files.format == data_files::DatasetFormat::kJsonLines || files.format == data_files::DatasetFormat::kText)
    return Found{std::move(files), open_hub(*options, there)};
  return absl::UnimplementedError(absl::StrCat(dataset_path,
                                               ": only JSON lines and plain text can be streamed from a "
                                               "hub: download other files with titanctl assets get ",
                                               path.repo.id,
                                               " --dataset --include GLOB, and set dataset_path to their folder"));
}

// Finds the files of a library's dataset; the library defines their format. settings.format is for other sources: the
// check of the configuration refuses one for this dataset (common/plan/config/data_sources.cc).
absl::StatusOr<ConfiguredFiles> files_of_library(std::shared_ptr<const LoadedDataset> loaded, const std::string& path,
                                                 const config::DataLoaderSection& settings) {
  const std::string who = absl::StrCat("dataset \"", loaded->name, "\" of ", loaded->library);
  if (path.empty() || hub::is_hub_path(path)) {
    return absl::InvalidArgumentError(absl::StrCat(who,
                                                   " reads files of this machine: set dataset_path to their "
                                                   "folder, to a glob or to a file"));
  }
  if (loaded->content == Content::kTokens && !settings.messages_key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(who, " returns tokens, so messages_key = \"", settings.messages_key,
                                                   "\" does not apply: leave it out"));
  }
  absl::StatusOr<std::vector<std::string>> files = data_files::find_files(path, loaded->ending);
  if (!files.ok()) return annotate(files.status(), who);
  return ConfiguredFiles{*std::move(files),
                         {.format = data_files::DatasetFormat::kPlugin,
                          .messages_key = settings.messages_key,
                          .train_on_all = settings.train_on == "all",
                          .plugin = std::move(loaded)}};
}

}  // namespace

absl::Status check_dataset_name(const std::string& dataset) {
  std::vector<std::string> known = data_files::dataset_names();
  for (std::string& name : loaded_dataset_names()) known.push_back(std::move(name));
  if (std::find(known.begin(), known.end(), dataset) != known.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there is no dataset \"", dataset, "\"", did_you_mean(dataset, known),
                                                 " (known: ", absl::StrJoin(known, ", "),
                                                 "; for a custom library set experimental.custom_import)"));
}

absl::StatusOr<ConfiguredFiles> configured_files(const std::string& dataset,
                                                 const std::optional<std::string>& dataset_path,
                                                 const config::DataLoaderSection& settings,
                                                 const std::string& record_folder) {
  TITAN_RETURN_IF_ERROR(check_dataset_name(dataset));
  if (auto loaded = find_loaded_dataset(dataset)) {
    return files_of_library(std::move(loaded), dataset_path.value_or(""), settings);
  }
  const data_files::DatasetFormat format =
      data_files::format_from_name(settings.format).value_or(data_files::DatasetFormat::kAuto);
  const std::string path = dataset_path.value_or("");
  Found found;
  if (hub::is_hub_path(path)) {
    TITAN_ASSIGN_OR_RETURN(found, found_in_hub(dataset, path, format, record_folder));
  } else {
    TITAN_ASSIGN_OR_RETURN(found.files, data_files::dataset_files(dataset, path, format));
    if (found.files.format == data_files::DatasetFormat::kJsonLines) {
      const absl::Status rows = data_files::check_first_rows(found.files, {.text_key = settings.text_key,
                                                                           .messages_key = settings.messages_key,
                                                                           .train_on_all = settings.train_on == "all",
                                                                           .max_bad_lines = settings.max_bad_lines});
      if (!rows.ok()) return annotate(rows, absl::StrCat("dataset_path ", path));
    }
  }
  return ConfiguredFiles{std::move(found.files.files),
                         {.format = found.files.format,
                          .text_key = settings.text_key,
                          .messages_key = settings.messages_key,
                          .train_on_all = settings.train_on == "all",
                          .blank_lines = settings.text_documents == "blank_lines",
                          .remote = std::move(found.remote),
                          .warning = std::move(found.files.warning)}};
}

}  // namespace titan::data
