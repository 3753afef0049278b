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
  int64_t device_memory_bytes =
      0;                       // Of one device, the smallest; on CPUs a rank's share of memory_bytes. 0: not known.
  std::string memory_unknown;  // Why not.
  bool driver_hangs = false;   // NVIDIA's: it did not answer in time.
  std::vector<std::string> visible;  // NvidiaPaths::visible, by device.

  // The CUDA_VISIBLE_DEVICES of ranks that have these devices; empty on CPUs.
  std::string visible_to_ranks(const std::vector<int>& devices) const;
};

// Where NVIDIA's devices are found.
struct NvidiaPaths {
  std::string device_files = "/dev/nvidia";  // And a number.
  std::string nvml = nvml::kLibrary;
  absl::Duration patience = absl::Seconds(30);  // A driver that first wakes eight devices takes many seconds.
  // The worker's own CUDA_VISIBLE_DEVICES, by which a scheduler or container may have given it a part of the node.
  std::optional<std::string> visible = std::nullopt;
};

// What this node offers. `devices`: "auto" (NVIDIA devices when there are any, or else one CPU rank per core), "cpu:N"
// or "cuda:N". A driver that does not answer is waited for no longer than its patience. Errors: InvalidArgument for
// another text; FailedPrecondition when cuda:N asks for more than there are.
absl::StatusOr<Resources> find_resources(const std::string& devices, const NvidiaPaths& nvidia = {});

}  // namespace titan::daemon
