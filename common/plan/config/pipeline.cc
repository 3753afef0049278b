#include "common/plan/config/pipeline.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/base/status/status.h"
#include "common/plan/config/checker.h"
#include "common/plan/models/registry.h"

namespace titan::config {

pipeline::PlanOptions pipeline_options(const JobConfig& config, std::int64_t n_layers) {
  const Parallelism& p = config.parallelism;
  return {.pipeline_parallel_degree = p.pipeline_parallel_degree,
          .pipeline_parallel_schedule = p.pipeline_parallel_schedule,
          .csv = std::nullopt,
          .csv_later = !p.pipeline_parallel_schedule_csv.empty(),
          .pipeline_parallel_layers_per_stage = p.pipeline_parallel_layers_per_stage,
          .pipeline_parallel_first_stage_less_layers = p.pipeline_parallel_first_stage_less_layers,
          .pipeline_parallel_last_stage_less_layers = p.pipeline_parallel_last_stage_less_layers,
          .module_fqns_per_model_part = p.module_fqns_per_model_part,
          .pipeline_parallel_microbatch_size = p.pipeline_parallel_microbatch_size,
          .local_batch_size = config.training.local_batch_size,
          .n_layers = n_layers};
}

absl::StatusOr<std::string> read_schedule_file(const std::string& path) {
  constexpr std::uintmax_t kMost = 64 << 20;
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a file"));
  std::ifstream in(path, std::ios::binary);
  if (!in) return errno_status(errno, absl::StrCat("open ", path));
  if (const std::uintmax_t size = std::filesystem::file_size(path, error); !error && size > kMost)
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", size, " bytes: no schedule is as large"));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<pipeline::Plan> pipeline_plan(const JobConfig& config, std::int64_t n_layers) {
  pipeline::PlanOptions options = pipeline_options(config, n_layers);
  const std::string& path = config.parallelism.pipeline_parallel_schedule_csv;
  if (options.csv_later) {
    absl::StatusOr<std::string> text = read_schedule_file(path);
    if (!text.ok()) return annotate(text.status(), "parallelism.pipeline_parallel_schedule_csv");
    options.csv = *std::move(text);
    options.csv_later = false;
  }
  return pipeline::plan(options);
}

std::vector<std::string> pipeline_warnings(const JobConfig& config) {
  if (config.parallelism.pipeline_parallel_degree == 1) return {};
  const auto spec = models::find(config.model.name, config.model.flavor);
  const auto plan = pipeline::plan(pipeline_options(config, spec.ok() ? spec->n_layers : 0));
  return plan.ok() ? plan->warnings : std::vector<std::string>();
}

// A job finds out here, and not in its first step.
void check_pipeline(Checker& check, std::int64_t n_layers) {
  if (check.config().parallelism.pipeline_parallel_degree == 1) return;
  const auto plan = pipeline::plan(pipeline_options(check.config(), n_layers));
  if (!plan.ok()) check.fail_as("parallelism", "", plan.status());
}

}  // namespace titan::config
