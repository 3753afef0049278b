#pragma once

// Estimates the memory of a step's images and captions on a rank, and of the frozen encoders that make its latents.

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/encoders/options.h"
#include "common/plan/models/flux_spec.h"

namespace titan::memory {

// Returns the numbers of a job's encoders, from no file (encoders/released.h); of none for stored encodings.
absl::StatusOr<encoders::EncoderOptions> job_encoders(const config::JobConfig& config, const models::FluxSpec& spec);

struct RowMemory {
  int64_t encoders = 0;  // Bytes of the frozen weights.
  int64_t held = 0;      // Tensors of all rows of a step, until its end.
  int64_t making = 0;    // Most bytes while a microbatch is encoded, in addition to both.
};

// Returns the memory of a rank's rows with these encoders. Every rank encodes its rows whole, also those of which
// context parallelism gives its blocks a part. `t5_ranks` ranks share one copy of T5 and gather it layer by layer, one
// ahead. A job of stored encodings has no encoders.
RowMemory row_memory(const config::JobConfig& config, const models::FluxSpec& spec,
                     const encoders::EncoderOptions& encoders, int64_t t5_ranks);

}  // namespace titan::memory
