#include "worker/data/configured_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/datasets.h"
#include "worker/data/hub/hub_files.h"

namespace titan::data {
namespace {

struct Found {
  DatasetFiles files;
  std::shared_ptr<RemoteFiles> remote;
};

absl::StatusOr<Found> found_in_hub(const std::string& dataset, const std::string& dataset_path, Format format,
                                   const std::string& record_folder) {
  absl::StatusOr<hub::DatasetPath> parsed = hub::parse_dataset_path(dataset_path);
  if (!parsed.ok()) return annotate(parsed.status(), dataset_path);
  hub::DatasetPath path = *std::move(parsed);
  if (path.place.empty() && path.repo.name() == "c4") path.place = "en";  // As of a mirror on disk.
  absl::StatusOr<hub::StreamOptions> options = hub_options();
  if (!options.ok()) return annotate(options.status(), dataset_path);
  ListedFiles listed{.chosen = names_files(path.place)};
  TITAN_ASSIGN_OR_RETURN(const std::vector<HubFile> there, hub_files(*options, path, record_folder));
  for (const HubFile& file : there) listed.files.push_back(file.path);
  TITAN_ASSIGN_OR_RETURN(DatasetFiles files, choose_files(dataset, dataset_path, listed, format));
  if (files.format == Format::kJsonLines || files.format == Format::kText)
    return Found{std::move(files), open_hub(*options, there)};
  return absl::UnimplementedError(absl::StrCat(dataset_path,
                                               ": only JSON lines and plain text are read from a hub as "
                                               "it goes: fetch other files with titanctl assets get ",
                                               path.repo.id,
                                               " --dataset --include GLOB, and set dataset_path to their folder"));
}

}  // namespace

absl::StatusOr<ConfiguredFiles> configured_files(const std::string& dataset,
                                                 const std::optional<std::string>& dataset_path,
                                                 const config::DataLoader& settings, const std::string& record_folder) {
  const Format format = format_from_name(settings.format).value_or(Format::kAuto);
  const std::string path = dataset_path.value_or("");
  Found found;
  if (hub::is_hub_path(path)) {
    TITAN_ASSIGN_OR_RETURN(found, found_in_hub(dataset, path, format, record_folder));
  } else {
    TITAN_ASSIGN_OR_RETURN(found.files, dataset_files(dataset, path, format));
  }
  return ConfiguredFiles{std::move(found.files.files),
                         {.format = found.files.format,
                          .text_key = settings.text_key,
                          .messages_key = settings.messages_key,
                          .train_on_all = settings.train_on == "all",
                          .blank_lines = settings.text_documents == "blank_lines",
                          .remote = std::move(found.remote)}};
}

}  // namespace titan::data
