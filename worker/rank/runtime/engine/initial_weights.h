#pragma once

#include <cstdint>

#include "worker/rank/device/device.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::runtime {

// Draws this rank's rows of a parameter, with the same values on any mesh. Call it with autograd disabled.
void draw_parameter(const parallel::ShardedParameter& placed, uint64_t seed, device::Device& device);

}  // namespace titan::runtime
