#pragma once

#include <cstdint>

#include "worker/kernels/cpu/eight_bits.h"

// Numbers as eight-bit floats with scales that follow them, as worker/nn/low_precision/float8.h says, on a device: bf16
// in, held as uint16_t, matrices row by row without gaps. A scale is the format's largest number / amax, in fp32 and at
// least as if amax were 1e-12; with `power_of_two` rounded down to one. What is written as `inverse` is 1 / scale. A
// NaN or an infinity makes all numbers of its scale NaN.
namespace titan::kernels {

struct Float8Format {
  EightBits format = EightBits::kE4m3;
  bool power_of_two = false;
};

// Raises amax[0] to the greatest magnitude of x; NaN if there is one.
struct Float8Amax {
  int64_t count = 0;
  const uint16_t* x = nullptr;
  float* amax = nullptr;
};

// The same of each column of matrices [batch, rows, columns]: amax [batch, columns].
struct Float8ColumnAmax {
  int64_t batch = 1, rows = 0, columns = 0;
  const uint16_t* x = nullptr;
  float* amax = nullptr;
};

// All numbers with the scale of one amax.
struct Float8Cast {
  int64_t count = 0;
  Float8Format to;
  const uint16_t* x = nullptr;
  const float* amax = nullptr;
  uint8_t* values = nullptr;
  float* inverse = nullptr;
};

// Each row of [rows, columns] with a scale of its own: inverse [rows].
struct Float8Rows {
  int64_t rows = 0, columns = 0;
  Float8Format to;
  const uint16_t* x = nullptr;
  uint8_t* values = nullptr;
  float* inverse = nullptr;
};

// Each column with the scale of its amax [batch, columns], turned: values [batch, columns, rows], inverse
// [batch, columns].
struct Float8Columns {
  int64_t batch = 1, rows = 0, columns = 0;
  Float8Format to;
  const uint16_t* x = nullptr;
  const float* amax = nullptr;
  uint8_t* values = nullptr;
  float* inverse = nullptr;
};

// Bytes of a matrix [rows, columns], turned: [columns, rows].
struct TurnBytes {
  int64_t rows = 0, columns = 0;
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;
};

}  // namespace titan::kernels
