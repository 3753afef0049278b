#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/plan/config/job_config.h"
#include "common/plan/memory/estimate.h"

namespace titan::planner {

// What one device has to hold at most, for all ranks that share it; nothing when it cannot be told. On CPUs the host's
// memory is the device's.
std::optional<int64_t> device_bytes(const config::JobConfig& config);

// "set activation_checkpoint.mode = \"full\", which takes about 31.0 GiB": the first change that fits into `room`
// bytes of each of `devices` devices, beginning with those that shrink the largest part; or all of them, when only
// together they fit. When only more devices would do, it says how many there are and how many it takes.
std::string remedy(const config::JobConfig& config, const memory::Parts& peak, int64_t room, int64_t devices);

}  // namespace titan::planner
