#include "common/plan/config/parallelism.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/sizes.h"

namespace titan::config {

mesh::Degrees degrees_of(const ParallelismSection& p) {
  return {.pp = p.pipeline_parallel_degree,
          .dp_replicate = p.data_parallel_replicate_degree,
          .dp_shard = p.data_parallel_shard_degree,
          .cp = p.context_parallel_degree,
          .tp = p.tensor_parallel_degree,
          .ep = p.expert_parallel_degree,
          .etp = p.expert_tensor_parallel_degree};
}

namespace {

// Checks that the product of the degrees does not overflow, and reports it otherwise.
bool check_degrees(Checker& check, const mesh::Degrees& degrees) {
  std::int64_t product = 1;
  for (const int degree : {degrees.pp, degrees.dp_replicate, std::max(degrees.dp_shard, 1), degrees.cp, degrees.tp}) {
    if (!__builtin_mul_overflow(product, std::int64_t{degree}, &product)) continue;
    check.fail(
        "parallelism", "",
        absl::StrCat("degrees multiply to far more than the job's ", counted(check.config().resources.ranks, "rank")),
        "");
    return false;
  }
  return true;
}

// Returns `sizes` with the settings that split rows, but not their length.
mesh::Sizes with_row_cuts(mesh::Sizes sizes, const ParallelismSection& parallelism) {
  sizes.chunks_per_context_rank = parallelism.context_parallel_load_balancer.has_value() ? 2 : 1;
  sizes.sequence_parallel = parallelism.enable_sequence_parallel;
  return sizes;
}

mesh::Sizes all_sizes(const JobConfig& config, const std::optional<models::ModelSpec>& spec, const mesh::Mesh& mesh) {
  mesh::Sizes sizes = with_row_cuts(spec.has_value() ? models::split_sizes(*spec) : mesh::Sizes(), config.parallelism);
  // Flux's rows are images and captions, whose lengths check_images() looks at.
  if (kind_of(config.model) != ModelKind::kTextToImage) sizes.seq_len = config.training.seq_len;
  const bool staged = mesh.size(mesh::Axis::kPipeline) > 1;
  sizes.rows = staged ? config.parallelism.pipeline_parallel_microbatch_size : config.training.local_batch_size;
  return sizes;
}

// Validation rows are split like training rows.
void check_validation_mesh(Checker& check, const mesh::Mesh& mesh) {
  const JobConfig& config = check.config();
  mesh::Sizes rows = with_row_cuts({}, config.parallelism);
  if (kind_of(config.model) != ModelKind::kTextToImage) rows.seq_len = config.validation.seq_len;
  if (absl::Status bad = mesh::check_divisible(mesh, rows); !bad.ok()) {
    const std::string message = absl::StrReplaceAll(bad.message(), {{"training.seq_len", "validation.seq_len"}});
    check.fail_as("validation.seq_len", "", absl::InvalidArgumentError(message));
  }
  const std::int64_t piece = config.parallelism.pipeline_parallel_microbatch_size;
  if (mesh.size(mesh::Axis::kPipeline) == 1 || piece < 1 || config.validation.local_batch_size % piece == 0) return;
  check.fail("validation.local_batch_size", config.validation.local_batch_size,
             absl::StrCat("is not a multiple of parallelism.pipeline_parallel_microbatch_size ", piece),
             absl::StrCat("use ", (config.validation.local_batch_size / piece + 1) * piece));
}

}  // namespace

absl::Status check_split(const JobConfig& config, const models::ModelSpec& spec, const mesh::Mesh& mesh) {
  TITAN_RETURN_IF_ERROR(mesh::check_divisible(mesh, all_sizes(config, spec, mesh)));
  return pipeline_plan(config, models::block_names(spec)).status();
}

void check_mesh(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const JobConfig& config = check.config();
  if (!check_degrees(check, degrees_of(config.parallelism))) return;
  const absl::StatusOr<mesh::Mesh> mesh = mesh::Mesh::create(degrees_of(config.parallelism), config.resources.ranks);
  if (!mesh.ok()) return check.fail_as("parallelism", "", mesh.status());
  if (absl::Status bad = mesh::check_divisible(*mesh, all_sizes(config, spec, *mesh)); !bad.ok())
    check.fail_as("parallelism", "", bad);
  if (config.validation.enable) check_validation_mesh(check, *mesh);

  if (mesh->size(mesh::Axis::kTensor) > 1 && config.parallelism.enable_async_tensor_parallel &&
      !config.parallelism.enable_sequence_parallel) {
    check.fail(
        "parallelism.enable_async_tensor_parallel", true,
        "needs parallelism.enable_sequence_parallel: activations that are whole on every rank are not gathered, so "
        "there is nothing to overlap",
        "leave one of the two out");
  }

  const TrainingSection& training = config.training;
  const std::int64_t round = training.local_batch_size * mesh->size(mesh::Axis::kBatch);
  if (training.global_batch_size > 0 && training.global_batch_size % round != 0) {
    const std::int64_t below = training.global_batch_size / round * round;
    check.fail("training.global_batch_size", training.global_batch_size,
               absl::StrCat("is not a multiple of training.local_batch_size ", training.local_batch_size, " x ",
                            mesh->size(mesh::Axis::kBatch), " data-parallel ranks = ", round),
               below > 0 ? absl::StrCat("use ", below, " or ", below + round) : absl::StrCat("use ", round));
  }
}

std::vector<std::string> shard_warnings(const JobConfig& config) {
  constexpr double kMuch = 1.25;  // Ratio of gathered bytes to needed ones that triggers the warning.
  const auto spec = resolve_model(config.model);
  const auto mesh = mesh::Mesh::create(degrees_of(config.parallelism), config.resources.ranks);
  if (!spec.ok() || !mesh.ok()) return {};
  const std::int64_t ranks = mesh->size(mesh::Axis::kFsdp);
  double needed = 0, padded = 0;
  std::int64_t short_ones = 0;
  for (const models::ParameterSpec& tensor : models::parameters(*spec)) {
    // Experts are sharded along another dimension if there are few of them.
    if (tensor.role == models::ParameterRole::kExpert || tensor.shape.empty() || tensor.shape[0] == 0) continue;
    const std::int64_t rows = tensor.shape[0], each = (rows + ranks - 1) / ranks;
    const auto numbers = static_cast<double>(tensor.numel());
    needed += numbers;
    padded += numbers / static_cast<double>(rows) * static_cast<double>(each * ranks);
    short_ones += rows < ranks;
  }
  if (needed == 0 || padded < kMuch * needed) return {};
  const std::string fewer =
      short_ones == 0
          ? ""
          : absl::StrCat(", and ", short_ones, short_ones == 1 ? " tensor has" : " tensors have", " fewer rows");
  return {absl::StrCat("parallelism.data_parallel_shard_degree: ", ranks, " ranks share one copy", fewer,
                       ": with the padding each gather is ", absl::StrFormat("%.1f", padded / needed),
                       " times as large; lower it with parallelism.data_parallel_replicate_degree (HSDP)")};
}

pipeline::PlanOptions pipeline_options(const JobConfig& config, const pipeline::ModelBlocks& blocks) {
  const ParallelismSection& p = config.parallelism;
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
          .blocks = blocks};
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
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", size, " bytes, which is too large for a schedule"));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<pipeline::PipelinePlan> pipeline_plan(const JobConfig& config, const pipeline::ModelBlocks& blocks) {
  pipeline::PlanOptions options = pipeline_options(config, blocks);
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
  const auto spec = resolve_model(config.model);
  const auto plan =
      pipeline::plan(pipeline_options(config, spec.ok() ? models::block_names(*spec) : pipeline::ModelBlocks()));
  return plan.ok() ? plan->warnings : std::vector<std::string>();
}

// Reports pipeline errors at submit instead of in the first step.
void check_pipeline(Checker& check, const pipeline::ModelBlocks& blocks) {
  if (check.config().parallelism.pipeline_parallel_degree == 1) return;
  const auto plan = pipeline::plan(pipeline_options(check.config(), blocks));
  if (!plan.ok()) check.fail_as("parallelism", "", plan.status());
}

}  // namespace titan::config
