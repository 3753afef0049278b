#include "common/plan/config/job_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/hub/dataset_path.h"
#include "common/io/s3/location.h"

namespace titan::config {

std::optional<Loaded> load_job(std::string_view text, Format format, const std::string& name,
                               const std::vector<std::string>& overrides, std::vector<Problem>& problems) {
  std::optional<Loaded> loaded = load_text(text, format, name, overrides, problems);
  if (!loaded || loaded->file_sets_keys) return loaded;
  problems.push_back(
      {{name, 0}, "", "", "sets no key; a job of defaults has to set at least one, such as job.description", ""});
  return std::nullopt;
}

void visit_paths(JobConfig& config, const std::function<void(const std::string& key, std::string& path)>& visit) {
  const auto optional = [&visit](const char* key, std::optional<std::string>& path) {
    const bool elsewhere = path.has_value() && (hub::is_hub_path(*path) || s3::is_location(*path));
    if (path.has_value() && !path->empty() && !elsewhere) visit(key, *path);  // A hub or a store is below no folder.
  };
  const auto required = [&visit](const char* key, std::string& path) {
    if (!path.empty()) visit(key, path);
  };
  visit("job.dump_folder", config.job.dump_folder);
  required("model.hf_assets_path", config.model.hf_assets_path);
  optional("training.dataset_path", config.training.dataset_path);
  optional("validation.dataset_path", config.validation.dataset_path);
  for (DataSource& source : config.training.dataloader.sources) {
    optional("training.dataloader.sources", source.dataset_path);
  }
  for (DataSource& source : config.validation.dataloader.sources) {
    optional("validation.dataloader.sources", source.dataset_path);
  }
  optional("checkpoint.initial_load_path", config.checkpoint.initial_load_path);
  required("parallelism.pipeline_parallel_schedule_csv", config.parallelism.pipeline_parallel_schedule_csv);
  required("experimental.custom_import", config.experimental.custom_import);
}

std::string source_text(std::string text, const std::vector<std::string>& overrides) {
  if (!overrides.empty()) absl::StrAppend(&text, "\n# command line: ", absl::StrJoin(overrides, " "), "\n");
  return text;
}

}  // namespace titan::config
