#include "worker/rank/runtime/step/kept_batch.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/counted.h"
#include "common/plan/config/mesh.h"
#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

using rank_protocol::kExitUserError;

namespace {

absl::Status takes_batch(const RankContext& context, const models::ModelSpec& spec, int64_t rows) {
  if (rows == context.config.training.local_batch_size) return absl::OkStatus();  // build() made its plan.
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

BatchPlan kept_batch(const RankContext& context, const models::ModelSpec& spec, const nlohmann::json& train_state,
                     const BatchPlan& configured) {
  const auto stored = train_state.find("global_batch");
  if (stored == train_state.end()) return configured;
  const config::Training& training = context.config.training;
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
    planned =
        annotate(planned.status(), "the checkpoint's global batch is kept where training.global_batch_size is not set");
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
