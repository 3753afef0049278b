#pragma once

// Estimates the peak memory of the fullest rank of a job during a step, from the configuration only, for programs
// without LibTorch.

#include <cstdint>
#include <optional>
#include <string>

#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"

namespace titan::memory {

// Bytes at one moment, by purpose.
struct Parts {
  int64_t weights = 0;      // The rank's shard, and gathered weights.
  int64_t gradients = 0;    // The rank's shard, gathered gradients, and sums that are not reduced yet.
  int64_t optimizer = 0;    // Optimizer states.
  int64_t activations = 0;  // Saved for the backward passes of waiting microbatches and of the current block.
  int64_t buffers = 0;      // Buffers of gathers, reductions and transfers; RoPE tables.

  int64_t total() const { return weights + gradients + optimizer + activations + buffers; }
};

struct Estimate {
  Parts peak;        // Peak on the device.
  int64_t host = 0;  // Peak bytes of shards, states and sums in host memory under training.enable_cpu_offload.
  int pipeline = 0;  // The fullest rank's index on the pipeline axis. Ranks along the other axes need the same.
};

// Returns the estimate for the fullest rank. Follows the engine's order of work (worker/rank/runtime/engine): shards,
// weights gathered ahead, the schedule's microbatches, recomputation, one reduction in flight. Like a dry run, it
// excludes workspaces inside kernels, fragmentation, NCCL's buffers and the CUDA context (2 to 4 GiB of a GPU);
// checkpoints, data and validation; and the optimizer's temporaries except for a round of Muon's matrices. It assumes
// evenly routed tokens, unless experts have capacity for all that can come, and attention that stores no scores.
// It overestimates adapters with few targets, since it counts the inputs of the other layers as kept.
// Flux's frozen encoders are counted, and the pictures that are encoded at the beginning of a step. A vision tower is
// counted with as many and as large images as data.max_images_per_batch and data.max_patches_per_image allow.
// The two passes of an overlapped pair (DualPipeV) are counted one after the other, as in a dry run.
// tests/worker/rank/runtime/memory_estimate_test.cc compares it with dry runs and states how far it may be off.
//
// `config` must be valid and resolved. Returns nothing when it cannot estimate: for a model of a library
// (experimental.custom_import) or with a vision tower that has no estimate, a schedule in a file, or widths of text
// encoders that no released encoder has.
std::optional<Estimate> peak_memory(const config::JobConfig& config);

// Estimates the rank at index `place` of the pipeline; `plan` must have steps and a split.
Estimate peak_memory_at(const config::JobConfig& config, const models::ModelSpec& spec,
                        const pipeline::PipelinePlan& plan, int place);

}  // namespace titan::memory
