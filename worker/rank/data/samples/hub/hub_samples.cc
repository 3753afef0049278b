#include "worker/rank/data/samples/hub/hub_samples.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/hub/hub_files.h"

namespace titan::data {

absl::StatusOr<SampleFiles> samples_on_hub(const std::string& dataset, const std::string& dataset_path,
                                           SampleFormat format, const std::string& record_folder) {
  TITAN_ASSIGN_OR_RETURN(const NamedSamples* named, named_samples_or_error(dataset));
  const absl::StatusOr<hub::DatasetPath> path = hub::parse_dataset_path(dataset_path);
  if (!path.ok()) return annotate(path.status(), dataset_path);
  const absl::StatusOr<hub::StreamOptions> options = hub_options();
  if (!options.ok()) return annotate(options.status(), dataset_path);
  TITAN_ASSIGN_OR_RETURN(const std::vector<HubFile> there, hub_files(*options, *path, record_folder));
  data_files::ListedFiles listed{.chosen = names_files(path->place)};
  for (const HubFile& file : there) listed.files.push_back(file.path);
  TITAN_ASSIGN_OR_RETURN(SampleFiles found, choose_sample_files(dataset_path, listed, format));
  if (found.kind.format != SampleFormat::kWebDataset) {
    return absl::UnimplementedError(
        absl::StrCat(dataset_path,
                     ": only tar archives of samples can be streamed from a hub: download other files with titanctl "
                     "assets get ",
                     path->repo.id, " --dataset --include GLOB, and set dataset_path to their folder"));
  }
  keep_split(*named, dataset_path, found);
  found.kind.remote = open_hub(*options, there);
  return found;
}

}  // namespace titan::data
