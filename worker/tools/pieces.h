#pragma once

#include <cstdint>
#include <vector>

#include "worker/checkpoint/box.h"

namespace titan::tools {

// A tensor of `shape` cut along its first dim into boxes of `bytes`, its elements having `item_bytes`, and of one index
// at least.
std::vector<checkpoint::Box> pieces_of(const std::vector<int64_t>& shape, int64_t item_bytes, int64_t bytes);

}  // namespace titan::tools
