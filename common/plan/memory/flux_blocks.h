#pragma once

// Estimates the memory of Flux's blocks on a rank for one microbatch.

#include <cstdint>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/memory/blocks.h"
#include "common/plan/models/flux.h"

namespace titan::memory {

// Returns the shape of one microbatch on one rank of a job of Flux.
models::FluxShape flux_shape(const config::JobConfig& config);

// Returns the bytes of a number in the encoders' results.
int64_t encoder_bytes(const config::JobConfig& config);

// Returns what each block keeps of a microbatch. The first block reads the microbatch's tensors themselves, unless it
// converts them; the last one keeps the loss's errors at full precision.
std::vector<models::BlockActivations> flux_activations(const config::JobConfig& config, const models::FluxSpec& spec);

// Returns the memory of embed, each double and single block, and final_layer, in this order.
std::vector<BlockMemory> flux_block_memory(const config::JobConfig& config, const models::FluxSpec& spec);

}  // namespace titan::memory
