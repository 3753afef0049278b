#include "worker/rank/runtime/step/job_library.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/loader/configured_files.h"
#include "worker/rank/data/plugin/registry.h"
#include "worker/rank/model/registry.h"

namespace titan::runtime {
namespace {

absl::Status check_datasets(const std::string& section, const std::string& dataset,
                            const config::DataLoader& settings) {
  if (settings.sources.empty()) {
    const absl::Status known = data::check_dataset_name(dataset);
    return known.ok() ? known : annotate(known, absl::StrCat(section, ".dataset"));
  }
  for (const config::DataSource& source : settings.sources) {
    if (!source.dataset) continue;
    const absl::Status known = data::check_dataset_name(*source.dataset);
    if (known.ok()) continue;
    return annotate(known, absl::StrCat(section, ".dataloader.sources: source \"", source.name, "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status load_job_library(const config::JobConfig& config) {
  const std::string& library = config.experimental.custom_import;
  if (library.empty()) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(model::load_plugin(library));
  TITAN_RETURN_IF_ERROR(data::load_datasets(library));
  TITAN_RETURN_IF_ERROR(check_datasets("training", config.training.dataset, config.training.dataloader));
  if (!config.validation.enable) return absl::OkStatus();
  return check_datasets("validation", config.validation.dataset, config.validation.dataloader);
}

}  // namespace titan::runtime
