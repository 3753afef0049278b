#pragma once

// The arithmetic of quantized weights: bytes to float32. Plain loops over memory.

#include <cstdint>

namespace titan::checkpoint {

// A box of an F8_E4M3 matrix, its bytes dense, and the scales of the blocks that it touches, dense too.
struct Float8Box {
  const uint8_t* bytes = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t first_row = 0, first_column = 0;  // In the blocks' grid: of the matrix, less whole blocks.
  const float* scales = nullptr;
  int64_t scale_columns = 0;
  int64_t block_rows = 128, block_columns = 128;
};

// Each number times its block's scale, in float32. False when one of them is NaN.
bool dequantize_float8(const Float8Box& box, float* out);

// `groups` times 16 bytes and one exponent, as 32 numbers each. Exact in float32 but where it overflows. An exponent of
// 255 stands for NaN, and must not be there.
void dequantize_mxfp4(const uint8_t* bytes, const uint8_t* exponents, int64_t groups, float* out);

}  // namespace titan::checkpoint
