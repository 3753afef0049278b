#pragma once

namespace titan::kernels {

// Format of numbers in memory. Arithmetic is fp32 or wider. bf16 is held as uint16_t, the upper half of an fp32.
enum class Dtype { kBf16, kF32 };

}  // namespace titan::kernels
