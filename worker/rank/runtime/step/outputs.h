#pragma once

#include <memory>

#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"
#include "worker/rank/runtime/profiling/memory_snapshots.h"
#include "worker/rank/runtime/profiling/tracer.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Open a rank's outputs: metrics, checkpoints, traces and memory snapshots. All throw Failure. The context must outlive
// the results.
std::unique_ptr<MetricsLogger> open_metrics(const RankContext& context, const models::ModelSpec& spec);
// Null if checkpoints are off. `built` must outlive it.
std::unique_ptr<checkpoint::Checkpointer> open_checkpoints(RankContext& context, const Built& built);
Tracer make_tracer(const RankContext& context);
MemorySnapshots make_memory_snapshots(const RankContext& context);

// Returns the part of a stop's grace period that is left for saving. Two seconds are reserved for the exit.
absl::Duration time_after_stop(const config::JobConfig& config);

}  // namespace titan::runtime
