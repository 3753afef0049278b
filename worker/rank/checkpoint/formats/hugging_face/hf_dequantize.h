#pragma once

// The arithmetic of quantized weights: converts bytes to float32, in plain loops over memory.

#include <cstdint>

namespace titan::checkpoint {

// A box of an F8_E4M3 matrix, and the scales of the blocks that it touches, both dense.
struct Float8Box {
  const uint8_t* bytes = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t first_row = 0, first_column = 0;  // Place of the box, counted from the first of these blocks.
  const float* scales = nullptr;
  int64_t scale_columns = 0;
  int64_t block_rows = 128, block_columns = 128;
};

// Writes each number times its block's scale to `out`, [rows, columns]. Returns false, and writes nothing, if a number
// is NaN.
bool dequantize_float8(const Float8Box& box, float* out);

// Converts `groups` times 16 bytes and one exponent to 32 numbers each. Exact in float32 unless it overflows. An
// exponent of 255 stands for NaN, and must not occur.
void dequantize_mxfp4(const uint8_t* bytes, const uint8_t* exponents, int64_t groups, float* out);

}  // namespace titan::checkpoint
