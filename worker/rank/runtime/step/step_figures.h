#pragma once

#include "worker/rank/data/loader/loader.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/step_report.h"
#include "worker/rank/runtime/step/train_state.h"

namespace titan::runtime {

// What is logged of a step besides times: losses, rates, sources of data, experts and logits. `progress`: as the step
// left it, with the schedule's count of the step itself.
StepMetrics step_figures(const config::JobConfig& config, const Built& built, data::Loader& loader,
                         const StepSummary& summary, const Progress& progress);

}  // namespace titan::runtime
