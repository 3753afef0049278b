#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace titan::daemon {

struct Resources {
  std::string device;  // "cpu" or "cuda".
  int devices = 0;     // Ranks that fit.
  int cpu_cores = 0;
  int64_t memory_bytes = 0;
  std::string device_model;
};

// What this node offers. `devices`: "auto" (NVIDIA devices when there are any, or else one CPU rank per core), "cpu:N"
// or "cuda:N". Errors: InvalidArgument for another text; FailedPrecondition when cuda:N asks for more than there are.
absl::StatusOr<Resources> find_resources(const std::string& devices);

}  // namespace titan::daemon
