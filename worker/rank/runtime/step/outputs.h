#pragma once

#include <memory>

#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"
#include "worker/rank/runtime/profiling/memory_snapshots.h"
#include "worker/rank/runtime/profiling/tracer.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Where a rank's figures, checkpoints, traces and memory snapshots go. All of them throw Failure; the context outlives
// what they return.
std::unique_ptr<MetricsLogger> open_metrics(const RankContext& context, const models::ModelSpec& spec);
// Null when checkpoints are off. `built` outlives it.
std::unique_ptr<checkpoint::Checkpointer> open_checkpoints(RankContext& context, const Built& built);
Tracer make_tracer(const RankContext& context);
MemorySnapshots make_memory_snapshots(const RankContext& context);

// What a stop's grace leaves for saving: two seconds are for leaving.
absl::Duration time_after_stop(const config::JobConfig& config);

}  // namespace titan::runtime
