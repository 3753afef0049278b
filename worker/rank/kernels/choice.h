#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "worker/rank/kernels/level.h"

// Selects the kernels that the layers of this process compute with. There is one choice per process, made before it
// computes, because ranks that run as its threads train one job.
namespace titan::kernels {

// Returns the chosen level of Titan's own CPU kernels, or nothing if LibTorch's operations are used, as before
// choose().
std::optional<Level> chosen_level();

// Chooses by name: "reference" is LibTorch's operations, "auto" the machine's best level or else "reference", and a
// level's name that level. Returns false, and changes nothing, if this machine lacks the level or the name is unknown.
bool choose(std::string_view written);

// Parts of a model that Titan's own device kernels can compute.
struct DeviceParts {
  bool model = false;      // Row operations of the layers.
  bool loss = false;       // Cross-entropy.
  bool optimizer = false;  // Optimizer steps with moments in fewer bits.
};
class DeviceKernels;

// Computes these parts with `kernels` (worker/rank/kernels/device_kernels.h), which must outlive all computation of the
// process. Other parts, or all if `kernels` is null, use LibTorch's operations, as before the call.
void choose_on_device(const DeviceKernels* kernels, DeviceParts parts);

enum class TrainingPart { kModel, kLoss, kOptimizer };
// Returns the kernels chosen for `part`. Null means LibTorch's operations.
const DeviceKernels* chosen_on_device(TrainingPart part);

}  // namespace titan::kernels
