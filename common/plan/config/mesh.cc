#include "common/plan/config/mesh.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status/status.h"
#include "common/base/text/counted.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/chosen_model.h"
#include "common/plan/config/pipeline.h"
#include "common/plan/mesh/divisibility.h"
#include "common/plan/models/sizes.h"
#include "common/plan/models/split_sizes.h"

namespace titan::config {
namespace {

// Whether the product of the degrees can be computed at all; reports it otherwise.
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

// `sizes` with how rows are cut, whatever their length.
mesh::Sizes with_row_cuts(mesh::Sizes sizes, const Parallelism& parallelism) {
  sizes.chunks_per_context_rank = parallelism.context_parallel_load_balancer.has_value() ? 2 : 1;
  sizes.sequence_parallel = parallelism.enable_sequence_parallel;
  return sizes;
}

mesh::Sizes all_sizes(const JobConfig& config, const std::optional<models::ModelSpec>& spec, const mesh::Mesh& mesh) {
  mesh::Sizes sizes = with_row_cuts(spec.has_value() ? models::split_sizes(*spec) : mesh::Sizes(), config.parallelism);
  sizes.seq_len = config.training.seq_len;
  const bool staged = mesh.size(mesh::Axis::kPipeline) > 1;
  sizes.rows = staged ? config.parallelism.pipeline_parallel_microbatch_size : config.training.local_batch_size;
  return sizes;
}

// Held-out rows are split like the training ones.
void check_validation_mesh(Checker& check, const mesh::Mesh& mesh) {
  const JobConfig& config = check.config();
  mesh::Sizes rows = with_row_cuts({}, config.parallelism);
  rows.seq_len = config.validation.seq_len;
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
  return pipeline_plan(config, spec.n_layers).status();
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

  const Training& training = config.training;
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
  constexpr double kMuch = 1.25;  // Times the bytes that a gather needs.
  const auto spec = chosen_model(config.model);
  const auto mesh = mesh::Mesh::create(degrees_of(config.parallelism), config.resources.ranks);
  if (!spec.ok() || !mesh.ok()) return {};
  const std::int64_t ranks = mesh->size(mesh::Axis::kFsdp);
  double needed = 0, padded = 0;
  std::int64_t short_ones = 0;
  for (const models::Tensor& tensor : models::parameters(*spec)) {
    // Experts are cut along another dimension where there are few of them.
    if (tensor.role == models::Role::kExpert || tensor.shape.empty() || tensor.shape[0] == 0) continue;
    const std::int64_t rows = tensor.shape[0], each = (rows + ranks - 1) / ranks;
    const auto numbers = static_cast<double>(tensor.numel());
    needed += numbers;
    padded += numbers / static_cast<double>(rows) * static_cast<double>(each * ranks);
    short_ones += rows < ranks;
  }
  if (needed == 0 || padded < kMuch * needed) return {};
  return {absl::StrCat("parallelism.data_parallel_shard_degree: ", ranks, " ranks share one copy, and ", short_ones,
                       short_ones == 1 ? " tensor has" : " tensors have",
                       " fewer rows: with the padding each gather is ", absl::StrFormat("%.1f", padded / needed),
                       " times as large; lower it with parallelism.data_parallel_replicate_degree (HSDP)")};
}

}  // namespace titan::config
