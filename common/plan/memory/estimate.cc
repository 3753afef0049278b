#include "common/plan/memory/estimate.h"

#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/memory/flux_rows.h"
#include "common/plan/memory/rank_memory.h"
#include "common/plan/memory/step_walk.h"
#include "common/plan/memory/tower.h"
#include "common/plan/models/sizes.h"

namespace titan::memory {

Estimate peak_memory_at(const config::JobConfig& config, const models::ModelSpec& spec,
                        const pipeline::PipelinePlan& plan, int place) {
  const mesh::Mesh mesh = mesh::Mesh::create(config::degrees_of(config.parallelism), config.resources.ranks).value();
  RankMemory rank = make_rank_memory(config, spec, plan, mesh, place);
  walk_step(rank, plan.schedule.steps[place]);
  return {.peak = rank.peak, .host = rank.host + rank.peak_host_sums, .pipeline = place};
}

std::optional<Estimate> peak_memory(const config::JobConfig& config) {
  const absl::StatusOr<models::ModelSpec> spec = config::resolve_model(config.model);
  if (!spec.ok()) return std::nullopt;
  if (!tower_blocks(*spec).empty() && !tower_memory(config, *spec)) return std::nullopt;
  if (spec->flux && !job_encoders(config, *spec->flux).ok()) return std::nullopt;
  const absl::StatusOr<pipeline::PipelinePlan> plan =
      pipeline::plan(config::pipeline_options(config, models::block_names(*spec)));
  if (!plan.ok() || plan->schedule.steps.empty()) return std::nullopt;
  std::optional<Estimate> fullest;
  for (int place = 0; place < plan->schedule.ranks; ++place) {
    const Estimate one = peak_memory_at(config, *spec, *plan, place);
    if (!fullest || one.peak.total() > fullest->peak.total()) fullest = one;
  }
  return fullest;
}

}  // namespace titan::memory
