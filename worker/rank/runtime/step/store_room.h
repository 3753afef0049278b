#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace titan::runtime {

// Whether rank 0 of `world` ranks, which hosts their store, may open enough files: each rank holds two connections with
// it, one for its work and one for its pulse. `descriptors`: the limit, 0 where it is not known.
absl::Status room_for_store(int world, int64_t descriptors);

}  // namespace titan::runtime
