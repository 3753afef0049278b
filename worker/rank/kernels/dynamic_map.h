#pragma once

#include <cstdint>

namespace titan::kernels {

// The 256 numbers of an 8-bit code with steps that grow with the number (T. Dettmers, "8-Bit Approximations for
// Parallelism in Deep Learning", 2015; the map of 8-bit optimizers, arXiv 2110.02861): 0, 1, and seven decades below 1.
// Each decade is cut into twice as many steps as the one below it, and the middles of the steps are the numbers. The
// signed map has decades of both signs but no -1. Codes are in ascending order of the numbers.
//
// A number of magnitude r, 10^-(d + 1) <= r <= 10^-d with d = 0 to 6, has a code within half a step of its decade,
// 10^-d * 0.45 / n with n = 128 / 2^d steps (signed 64 / 2^d). That is 0.0036 (signed 0.0071) at most. Relative to r it
// is 3.6 % (7.1 %) down to 0.1, and twice as much with each further decade. The signed map turns magnitudes below
// 2.75e-7 into 0. In the unsigned map only 0 is 0, and numbers below the smallest one, 3.25e-7, become it. These are
// squares, and updates are divided by their roots: a square lost to 0 could make an update of any size (the zero-point
// problem of arXiv 2309.01507).
struct DynamicMap {
  // Cells index magnitudes by their upper 16 bits, from 2^-24 to 1. A cell is 1/128 of a binade and contains at most
  // one bound.
  static constexpr int32_t kFirstCell = (127 - 24) << 7;
  static constexpr int32_t kCells = ((127 << 7) - kFirstCell) + 1;

  int32_t zero = 0;               // Code of 0: 127 if signed, else 0.
  alignas(64) float values[256];  // Number of each code.
  // Steps count magnitudes from 0. A magnitude of at most bounds[k] is in step k or below. The last is infinity.
  alignas(64) float bounds[256];
  // Step of each cell's smallest magnitude. Padded, because it is read four bytes at a time.
  alignas(64) uint8_t cells[kCells + 4];
};

// Returns a map that lives as long as the process.
const DynamicMap& dynamic_map(bool is_signed);

}  // namespace titan::kernels
