#pragma once

#include <cstdint>

namespace titan::kernels {

// The 256 numbers of an 8-bit code whose steps grow with the number (T. Dettmers, "8-Bit Approximations for
// Parallelism in Deep Learning", 2015; the map of 8-bit optimizers, arXiv 2110.02861): seven decades below 1, each cut
// into twice as many steps as the one below, of which the middles count; 0; and 1. Signed: the decades of both signs,
// no -1. Codes count the numbers in ascending order.
//
// A number of magnitude r, 10^-(d + 1) <= r <= 10^-d with d = 0 to 6, meets a code within half a step of its decade,
// 10^-d * 0.45 / n with n = 128 / 2^d steps (signed 64 / 2^d): 0.0036 (signed 0.0071) at most, and of r itself 3.6 %
// (7.1 %) down to 0.1, twice as much with each decade further down. Signed, what is below 2.75e-7 is 0. Without sign
// only 0 is 0, and what is smaller than the least number, 3.25e-7, becomes it: these are squares whose roots something
// is divided by (a square that is lost makes an update of any size; arXiv 2309.01507 calls it the zero-point problem).
struct DynamicMap {
  // Magnitudes by their upper 16 bits, from 2^-24 to 1: in each cell of 1/128 of a binade lies one bound at most.
  static constexpr int32_t kFirstCell = (127 - 24) << 7;
  static constexpr int32_t kCells = ((127 << 7) - kFirstCell) + 1;

  int32_t zero = 0;               // The code of 0: 127, or 0.
  alignas(64) float values[256];  // Of each code.
  // Magnitudes count steps from 0: at most bounds[k] is step k or below. After the last step infinity.
  alignas(64) float bounds[256];
  alignas(64) uint8_t cells[kCells + 4];  // The step of each cell's least magnitude; read four bytes at a time.
};

const DynamicMap& dynamic_map(bool is_signed);

}  // namespace titan::kernels
