#pragma once

#include <cstdint>
#include <vector>

#include "worker/rank/device/device.h"
#include "worker/rank/nn/block.h"

namespace titan::runtime {

// What a device draws for the part of a parameter that begins at `offset` of the whole and has the sizes `box`: the
// same numbers as nn::fill_box. For initial values that are normal, cut or not.
device::NormalBox normal_box(const nn::Parameter& parameter, uint64_t seed, std::vector<int64_t> offset,
                             std::vector<int64_t> box);

}  // namespace titan::runtime
