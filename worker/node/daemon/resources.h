#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/node/daemon/nvml.h"

namespace titan::daemon {

struct Resources {
  std::string device;  // "cpu" or "cuda".
  int devices = 0;     // Ranks that fit.
  int cpu_cores = 0;
  int64_t memory_bytes = 0;
  std::string device_model;
  int64_t device_memory_bytes = 0;   // Smallest of all devices; on CPUs a rank's share of memory_bytes. 0: unknown.
  std::string memory_unknown;        // Why it is unknown.
  bool driver_hangs = false;         // NVIDIA's driver did not answer in time.
  std::vector<std::string> visible;  // NvidiaPaths::visible, by device.

  // Returns the value of CUDA_VISIBLE_DEVICES for ranks that use these devices; empty on CPUs.
  std::string visible_to_ranks(const std::vector<int>& devices) const;
};

// Where to find NVIDIA's devices.
struct NvidiaPaths {
  std::string device_files = "/dev/nvidia";  // Followed by a number.
  std::string nvml = nvml::kLibrary;
  absl::Duration timeout = absl::Seconds(30);  // A driver that has to initialize eight devices takes many seconds.
  // The worker's own CUDA_VISIBLE_DEVICES: a scheduler or container may have given it a part of the node.
  std::optional<std::string> visible = std::nullopt;
};

// Determines what this node offers. `devices`: "auto" (NVIDIA devices if there are any, else one CPU rank per core),
// "cpu:N" or "cuda:N". Waits for the driver no longer than nvidia.timeout. Errors: InvalidArgument for any other text,
// FailedPrecondition when cuda:N exceeds the number of devices.
absl::StatusOr<Resources> find_resources(const std::string& devices, const NvidiaPaths& nvidia = {});

}  // namespace titan::daemon
