#include "worker/data/configured_files.h"

#include <utility>

#include "common/status/status.h"
#include "worker/data/datasets.h"

namespace titan::data {

absl::StatusOr<ConfiguredFiles> configured_files(const std::string& dataset,
                                                 const std::optional<std::string>& dataset_path,
                                                 const config::DataLoader& settings) {
  const Format format = format_from_name(settings.format).value_or(Format::kAuto);
  TITAN_ASSIGN_OR_RETURN(DatasetFiles found, dataset_files(dataset, dataset_path.value_or(""), format));
  return ConfiguredFiles{std::move(found.files),
                         {found.format, settings.text_key, settings.text_documents == "blank_lines"}};
}

}  // namespace titan::data
