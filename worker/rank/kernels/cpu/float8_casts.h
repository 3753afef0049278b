#pragma once

#include <array>
#include <cstdint>

// Rounds bf16 numbers as emulated eight-bit products require, in one pass per operation. bf16 is held as uint16_t, and
// an eight-bit float as uint8_t. These functions have no levels: the compiler vectorizes them for instructions that
// every processor has. Results do not depend on threads, and NaN stays NaN.
namespace titan::kernels {

enum class Float8Type { kE4m3, kE5m2 };  // e4m3fn and e5m2 of the OCP formats.

// A tensor [outer, size, inner], cut into blocks along `size`, of which the last one may be shorter. One number per
// block makes a tensor [outer, count(), inner].
struct Blocks {
  int64_t outer = 1, size = 1, inner = 1;
  int64_t block = 1;  // At least 1.
  int64_t count() const { return (size + block - 1) / block; }
};

// Writes the greatest magnitude of each block of x [outer, size, inner] to amax [outer, count(), inner], which must
// hold zeros. NaN if the block contains one.
void amax_of_blocks(const Blocks& blocks, const uint16_t* x, uint16_t* amax, int threads);

// rounded = x * scale as e4m3, saturated, times inverse, in bf16. x and rounded are [outer, size, inner]. scale and
// inverse are [outer, count(), inner] and powers of two.
void round_by_blocks(const Blocks& blocks, const uint16_t* x, const float* scale, const float* inverse,
                     uint16_t* rounded, int threads);

// codes = x * scale as eight bits, rounded to nearest, ties to even, saturated. Both are [count].
void encode(Float8Type format, const uint16_t* x, int64_t count, float scale, uint8_t* codes, int threads);

// Looks up the numbers [count] of the codes [count] in a table.
void decode(const std::array<uint16_t, 256>& table, const uint8_t* codes, int64_t count, uint16_t* numbers,
            int threads);

}  // namespace titan::kernels
