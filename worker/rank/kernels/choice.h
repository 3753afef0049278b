#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "worker/rank/kernels/level.h"

// Which kernels the layers of this process compute with. One choice for a process, made before it computes: its ranks,
// where they are threads, train one job.
namespace titan::kernels {

// The level of Titan's own CPU kernels; none: LibTorch's operations alone, which is also so before choose().
std::optional<Level> chosen_level();

// "reference": LibTorch's operations. "auto": the machine's best level; on one that has none as "reference". A level's
// name: that one; false if this machine lacks it.
bool choose(std::string_view written);

// The parts of a model that Titan's own kernels of a device may compute.
struct DeviceParts {
  bool model = false;      // The layers' row operations.
  bool loss = false;       // Cross-entropy.
  bool optimizer = false;  // Steps whose states are kept in fewer bits.
};
class DeviceKernels;

// For these parts, these kernels of the device (worker/rank/kernels/device_kernels.h), which outlive the process' work;
// for others, and where `kernels` is null, LibTorch's operations, as before the call.
void choose_on_device(const DeviceKernels* kernels, DeviceParts parts);

// Null: LibTorch's operations.
enum class Part { kModel, kLoss, kOptimizer };
const DeviceKernels* chosen_on_device(Part part);

}  // namespace titan::kernels
