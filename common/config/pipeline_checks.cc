// Stages and microbatches of a pipeline: torchtitan's rules, checked before a job waits for them in its first step.
#include <array>

#include "common/config/checker.h"

namespace titan::config {
namespace {

struct Schedule {
  std::string_view name;
  int stages_per_rank;  // Without layers_per_stage. 0: a file tells.
};

constexpr std::array<Schedule, 10> kSchedules = {{{"1F1B", 1},
                                                  {"GPipe", 1},
                                                  {"Interleaved1F1B", 2},
                                                  {"LoopedBFS", 2},
                                                  {"InterleavedZeroBubble", 2},
                                                  {"ZBVZeroBubble", 2},
                                                  {"DualPipeV", 2},
                                                  {"PipelineScheduleSingle", 0},
                                                  {"PipelineScheduleMulti", 0},
                                                  {"_PipelineScheduleRuntime", 0}}};

int stages_per_rank(const Parallelism& p) {
  for (const Schedule& schedule : kSchedules) {
    if (schedule.name == p.pipeline_parallel_schedule) return schedule.stages_per_rank;
  }
  return 0;
}

// Number of stages that layers_per_stage gives, 0 when that is wrong (and reported).
std::int64_t check_layers_per_stage(Checker& check, std::int64_t effective, std::int64_t layers_per_stage) {
  const Parallelism& p = check.config().parallelism;
  const std::int64_t stages = (effective + layers_per_stage - 1) / layers_per_stage;
  const std::string key = "parallelism.pipeline_parallel_layers_per_stage";
  if (stages % p.pipeline_parallel_degree != 0) {
    check.fail(key, layers_per_stage,
               absl::StrCat("gives ", stages, " stages, which pipeline_parallel_degree ", p.pipeline_parallel_degree,
                            " does not divide"),
               "");
    return 0;
  }
  const std::int64_t per_rank = stages / p.pipeline_parallel_degree;
  const int wanted = stages_per_rank(p);
  if ((wanted == 1 && per_rank != 1) || (wanted == 2 && per_rank < 2)) {
    check.fail(key, layers_per_stage,
               absl::StrCat("gives ", per_rank, " stages per rank, but schedule ", p.pipeline_parallel_schedule,
                            " takes ", wanted == 1 ? "1" : "2 or more"),
               "");
    return 0;
  }
  return stages;
}

}  // namespace

void check_pipeline(Checker& check, std::int64_t n_layers) {
  const Parallelism& p = check.config().parallelism;
  if (p.pipeline_parallel_degree == 1) return;
  const std::int64_t batch = check.config().training.local_batch_size;
  if (batch % p.pipeline_parallel_microbatch_size != 0) {
    return check.fail("parallelism.pipeline_parallel_microbatch_size", p.pipeline_parallel_microbatch_size,
                      absl::StrCat("does not divide training.local_batch_size ", batch), "");
  }
  const std::int64_t effective =
      n_layers + p.pipeline_parallel_first_stage_less_layers + p.pipeline_parallel_last_stage_less_layers;
  std::int64_t stages = std::int64_t{p.pipeline_parallel_degree} * stages_per_rank(p);
  if (p.module_fqns_per_model_part.has_value()) {
    stages = static_cast<std::int64_t>(p.module_fqns_per_model_part->size());
    if (stages == 0 || stages % p.pipeline_parallel_degree != 0) {
      return check.fail("parallelism.module_fqns_per_model_part", absl::StrCat(stages, " parts"),
                        absl::StrCat("is not a multiple of pipeline_parallel_degree ", p.pipeline_parallel_degree), "");
    }
  } else if (p.pipeline_parallel_layers_per_stage.has_value() && n_layers > 0) {
    stages = check_layers_per_stage(check, effective, *p.pipeline_parallel_layers_per_stage);
    if (stages == 0) return;
  }
  if (n_layers > 0 && stages > effective) {
    check.fail("parallelism.pipeline_parallel_degree", p.pipeline_parallel_degree,
               absl::StrCat("gives ", stages, " stages for ", effective, " layers (embedding and output count)"),
               "use fewer stages");
  }
  const std::int64_t microbatches = batch / p.pipeline_parallel_microbatch_size;
  if (stages > 0 && microbatches < stages) {
    check.fail("training.local_batch_size", batch,
               absl::StrCat("makes ", microbatches, " microbatches of parallelism.pipeline_parallel_microbatch_size ",
                            p.pipeline_parallel_microbatch_size, " for ", stages, " pipeline stages"),
               absl::StrCat("use at least ", stages * p.pipeline_parallel_microbatch_size));
  }
}

}  // namespace titan::config
