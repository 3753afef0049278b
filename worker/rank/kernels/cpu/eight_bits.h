#pragma once

#include <array>
#include <cstdint>

// What emulated products in eight bits do to bf16 numbers, in one pass each. bf16 is held as uint16_t, a float of eight
// bits as uint8_t. There is no level: the compiler makes vectors of what every processor has. Results do not depend on
// threads; a NaN stays one.
namespace titan::kernels {

enum class EightBits { kE4m3, kE5m2 };  // e4m3fn and e5m2 of the OCP's formats.

// A tensor [outer, size, inner], cut in blocks along `size`, the last one shorter. With one number a block it is
// [outer, count(), inner].
struct Blocks {
  int64_t outer = 1, size = 1, inner = 1;
  int64_t block = 1;  // At least 1.
  int64_t count() const { return (size + block - 1) / block; }
};

// The greatest magnitude of each block, in `amax`, which holds zeros before; NaN if there is one.
void amax_of_blocks(const Blocks& blocks, const uint16_t* x, uint16_t* amax, int threads);

// x * scale as e4m3, saturated, times inverse, in bf16. Scales, one a block, are powers of two.
void round_by_blocks(const Blocks& blocks, const uint16_t* x, const float* scale, const float* inverse,
                     uint16_t* rounded, int threads);

// x * scale as eight bits, the nearest, ties to even, saturated.
void encode(EightBits format, const uint16_t* x, int64_t count, float scale, uint8_t* codes, int threads);

// The number of each code by a table of all.
void decode(const std::array<uint16_t, 256>& table, const uint8_t* codes, int64_t count, uint16_t* numbers,
            int threads);

}  // namespace titan::kernels
