#pragma once

#include <cstdint>

#include "worker/rank/device/device.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::runtime {

// Draws this rank's rows of a parameter, the same values on any mesh. Call it without gradients.
void draw_parameter(const parallel::ShardedParameter& placed, uint64_t seed, device::Device& device);

}  // namespace titan::runtime
