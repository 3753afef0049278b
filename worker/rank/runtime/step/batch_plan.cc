#include "worker/rank/runtime/step/batch_plan.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/parallelism.h"
#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {
namespace {

// Returns the divisors of `rows` in the order in which they are tried: downwards from `wanted`, then upwards.
std::vector<int64_t> by_preference(int64_t rows, int64_t wanted) {
  std::vector<int64_t> below, above;
  for (int64_t size = 1; size <= rows; ++size) {
    if (rows % size == 0) (size <= wanted ? below : above).push_back(size);
  }
  std::reverse(below.begin(), below.end());
  below.insert(below.end(), above.begin(), above.end());
  return below;
}

}  // namespace

absl::StatusOr<BatchPlan> plan_batch(int64_t global_batch, int64_t local_batch, int64_t data_parallel_ranks,
                                     const TakesBatch& takes) {
  if (global_batch < 0) global_batch = local_batch * data_parallel_ranks;
  if (global_batch < 1 || global_batch % data_parallel_ranks != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.global_batch_size = ", global_batch, " is not divisible by the ",
                     counted(data_parallel_ranks, "data-parallel rank"), "; choose a number of ranks that divides it"));
  }
  const int64_t rows = global_batch / data_parallel_ranks;
  const std::vector<int64_t> sizes = by_preference(rows, local_batch);
  std::vector<std::string> reasons;
  for (const int64_t size : sizes) {
    const absl::Status taken = takes ? takes(size) : absl::OkStatus();
    if (taken.ok()) return BatchPlan{global_batch, size, rows / size};
    reasons.push_back(absl::StrCat("with ", size, ": ", std::string(taken.message())));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "training.global_batch_size = ", global_batch, " gives ",
      data_parallel_ranks == 1 ? "the data-parallel rank"
                               : absl::StrCat("each of the ", data_parallel_ranks, " data-parallel ranks"),
      " ", counted(rows, "row"),
      ", and this mesh supports no local batch that divides them; choose fewer data-parallel ranks or another "
      "pipeline (",
      absl::StrJoin(reasons, "; "), ")"));
}

using rank_protocol::kExitUserError;

namespace {

absl::Status takes_batch(const RankContext& context, const models::ModelSpec& spec, int64_t rows) {
  if (rows == context.config.training.local_batch_size) return absl::OkStatus();  // build() has checked it.
  config::JobConfig job = context.config;
  job.training.local_batch_size = rows;
  return config::check_split(job, spec, context.mesh->mesh());
}

absl::StatusOr<BatchPlan> plan_rows(const RankContext& context, const models::ModelSpec& spec, int64_t global_batch) {
  return plan_batch(global_batch, context.config.training.local_batch_size,
                    context.mesh->mesh().size(mesh::Axis::kBatch),
                    [&](int64_t rows) { return takes_batch(context, spec, rows); });
}

}  // namespace

absl::StatusOr<BatchPlan> configured_batch(const RankContext& context, const models::ModelSpec& spec) {
  return plan_rows(context, spec, context.config.training.global_batch_size);
}

BatchPlan resumed_batch(const RankContext& context, const models::ModelSpec& spec, const nlohmann::json& train_state,
                        const BatchPlan& configured) {
  const auto stored = train_state.find("global_batch");
  if (stored == train_state.end()) return configured;
  const config::TrainingSection& training = context.config.training;
  const auto before = stored->get<int64_t>();
  const auto warn = [&context](const std::string& text) {
    if (context.rank == 0) context.reporter->warning(text);
  };
  if (training.global_batch_size > 0) {
    if (before != configured.global_batch) {
      warn(absl::StrCat("the checkpoint was trained with a global batch of ", counted(before, "row"),
                        "; training continues with training.global_batch_size = ", configured.global_batch));
    }
    return configured;
  }
  absl::StatusOr<BatchPlan> planned = plan_rows(context, spec, before);
  if (!planned.ok()) {
    planned = annotate(planned.status(),
                       "the checkpoint's global batch is kept because training.global_batch_size is not set");
  }
  const BatchPlan kept = value(std::move(planned), kExitUserError, "BATCH_SIZE");
  if (before != configured.global_batch) {
    warn(absl::StrCat("the checkpoint's global batch of ", counted(before, "row"), " is kept; the configuration gives ",
                      configured.global_batch, ": set training.global_batch_size to change it"));
  }
  if (kept.local_batch > training.local_batch_size) {
    warn(absl::StrCat("a local batch of ", counted(kept.local_batch, "row"), " is used, not ",
                      training.local_batch_size, ": no smaller one keeps the global batch on this mesh"));
  }
  return kept;
}

}  // namespace titan::runtime
