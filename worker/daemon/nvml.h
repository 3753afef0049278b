#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace titan::daemon {

// NVIDIA's management library comes with the driver, and is loaded while the daemon starts: nothing is linked.
inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

struct GpuFacts {
  int64_t memory_bytes = 0;  // Of the device that has least.
  std::string model;         // Of the first.
};

// What the library says of the first `devices` devices, or of fewer when it knows fewer. Errors: NotFound when the
// library cannot be loaded or lacks a function, Unavailable when it cannot work or knows no device.
absl::StatusOr<GpuFacts> read_nvml(const std::string& library, int devices);

}  // namespace titan::daemon
