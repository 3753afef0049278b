#pragma once

#include <optional>
#include <string>

namespace titan::runtime {

// Returns a device's peak FLOP/s for dense matmuls in `dtype` (a value of training.mixed_precision_param, or "float8"),
// by the device's name. bfloat16 and float16 are torchtitan's values; float32 (without TF32) and float8 come from the
// data sheets. If a board has several variants, the name selects one, by default SXM. Empty for other devices, where
// torchtitan assumes an A100: a fraction of another device's peak is meaningless.
std::optional<double> device_peak(const std::string& device_name, const std::string& dtype);

}  // namespace titan::runtime
