#pragma once

#include <array>
#include <cstdint>

// NF4 (QLoRA, arXiv 2305.14314): a number is one of these sixteen times the scale of its block.
namespace titan::kernels {

inline constexpr std::array<float, 16> kNf4Numbers = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

// Unpacks a row to numbers [columns], computed in fp32 and rounded to T. `row` has columns / 2 bytes of codes, two per
// byte with the first in the upper half, and then one float scale per `block` numbers. `block` is even and divides
// `columns`.
template <typename T>
void unpack_nf4_row(const uint8_t* row, int64_t columns, int64_t block, T* numbers) {
  const auto* scales = reinterpret_cast<const float*>(row + columns / 2);
  for (int64_t i = 0; i < columns / 2; ++i) {
    const float scale = scales[2 * i / block];
    numbers[2 * i] = static_cast<T>(kNf4Numbers[row[i] >> 4] * scale);
    numbers[2 * i + 1] = static_cast<T>(kNf4Numbers[row[i] & 15] * scale);
  }
}

}  // namespace titan::kernels
