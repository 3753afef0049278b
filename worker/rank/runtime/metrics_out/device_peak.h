#pragma once

#include <optional>
#include <string>

namespace titan::runtime {

// Peak FLOP/s of a device for dense products in `dtype` (a value of training.mixed_precision_param, or "float8"), by
// the device's name. bfloat16 and float16 as torchtitan lists them; float32 without TF32, and float8, from the makers'
// data sheets, of boards that come in several forms by their form (SXM where the name says none). None for every other
// device, where torchtitan takes an A100's: a share of another device's peak says nothing.
std::optional<double> device_peak(const std::string& device_name, const std::string& dtype);

}  // namespace titan::runtime
