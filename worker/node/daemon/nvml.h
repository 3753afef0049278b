#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::daemon {

struct GpuFacts {
  int devices = 0;           // That the driver opens for this process: a container's own, none that has failed.
  int64_t memory_bytes = 0;  // Of the device that has least.
  std::string model;         // Of the first.
};

// What NVIDIA's management library says of the first `devices` devices, or of fewer when it knows fewer. Errors: those
// of nvml::Library::open, Unavailable when it knows no device, and DeadlineExceeded when it has not answered within
// `patience`: a driver that hangs keeps the thread that asked it, and nobody else.
absl::StatusOr<GpuFacts> read_nvml(const std::string& library, int devices, absl::Duration patience);

}  // namespace titan::daemon
