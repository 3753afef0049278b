#pragma once

// What the fullest rank of a job holds at its peak during a step, without building anything: for decisions that are
// made where there is no LibTorch.

#include <cstdint>
#include <optional>
#include <string>

#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"

namespace titan::memory {

// Bytes at one moment, by what they are for.
struct Parts {
  int64_t weights = 0;      // The rank's shard, and what is gathered.
  int64_t gradients = 0;    // The same of their gradients, and sums that are not reduced yet.
  int64_t optimizer = 0;    // Its states.
  int64_t activations = 0;  // Microbatches that wait for their backward pass, and the block at work.
  int64_t buffers = 0;      // Of gathers, reductions and transfers; tables of positions.

  int64_t total() const { return weights + gradients + optimizer + activations + buffers; }
};

struct Estimate {
  Parts peak;        // On the device, when it is fullest.
  int64_t host = 0;  // With training.enable_cpu_offload: shards and states, which are in the host's memory instead.
  int pipeline = 0;  // The fullest rank's place on the pipeline's axis. Along the other axes ranks are alike.
};

// Follows the engine's order of work (worker/rank/runtime/engine): shards, blocks' weights that are gathered ahead, the
// schedule's microbatches, recomputation, one reduction in flight. Left out, as in a dry run: workspaces inside
// kernels, fragmentation, NCCL's buffers and the CUDA context (2 to 4 GiB of a GPU); checkpoints, data, validation and
// the optimizer's own temporaries but for a round of Muon's matrices. Routed tokens are taken to be dealt evenly, where
// experts do not have room for all that can come, and attention to write no scores down.
// Of adapters whose targets are few the inputs of other layers are counted as kept, which they are not.
// Halves of a pair (DualPipeV) count one after the other, as in a dry run.
// tests/worker/rank/runtime/memory_estimate_test.cc holds it against dry runs and states the bound.
//
// `config` is valid and resolved. Nothing when it cannot be told: a model of a library (experimental.custom_import) or
// a schedule that stands in a file.
std::optional<Estimate> peak_memory(const config::JobConfig& config);

// Of the rank at one place of the pipeline; `plan` has steps and a split.
Estimate peak_memory_at(const config::JobConfig& config, const models::ModelSpec& spec, const pipeline::Plan& plan,
                        int place);

}  // namespace titan::memory
