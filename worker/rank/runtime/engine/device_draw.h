#pragma once

#include <cstdint>
#include <vector>

#include "worker/rank/device/device.h"
#include "worker/rank/nn/block.h"

namespace titan::runtime {

// Describes the values that a device draws for the part of a parameter with sizes `box` at `offset`: the same values as
// nn::fill_box. For normal initial values, truncated or not.
device::NormalBox normal_box(const nn::Parameter& parameter, uint64_t seed, std::vector<int64_t> offset,
                             std::vector<int64_t> box);

}  // namespace titan::runtime
