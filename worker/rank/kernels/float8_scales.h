#pragma once

#include <cstdint>

#include "worker/rank/kernels/cpu/eight_bits.h"

// Numbers as eight-bit floats with scales that follow them, as worker/rank/nn/low_precision/float8.h says, on a device:
// bf16 in, held as uint16_t, matrices row by row without gaps. A scale is the format's largest number / amax, in fp32
// and at least as if amax were 1e-12; with `power_of_two` rounded down to one. What is written as `inverse` is 1 /
// scale. A NaN or an infinity makes all numbers of its scale NaN.
namespace titan::kernels {

// Where the rows of groups lie that begin at multiples of sixteen, as grouped products want them. Null: rows lie where
// they are, all of one group.
struct SpreadRows {
  const int32_t* source = nullptr;  // [rows] x's row that lies there; negative: zeros.
  const int32_t* group = nullptr;   // [rows / 16] Whose rows they are; negative: nobody's.
};

// Finds them for `count` rows, of which the groups have the first ones, one group after the other. Rows of no group lie
// behind all others, as zeros. `rows`, a multiple of sixteen, is at least count + 15 + 16 * groups.
struct FindSpreadRows {
  int64_t count = 0, groups = 0, rows = 0;
  const int32_t* ends = nullptr;   // [groups] Of the groups' rows.
  int32_t* source = nullptr;       // [rows]
  int32_t* group = nullptr;        // [rows / 16]
  int32_t* places = nullptr;       // [count] Where each row lies.
  int32_t* spread_ends = nullptr;  // [groups] With the zeros behind each group.
};

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

// The same of each column of matrices [batch, rows, columns]: amax [batch, columns]; of spread rows, of each group's
// columns: [groups, columns].
struct Float8ColumnAmax {
  int64_t batch = 1, rows = 0, columns = 0;
  SpreadRows spread;
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

// Each row of [rows, columns] with a scale of its own: inverse [rows], 1 for a row of zeros between groups.
struct Float8Rows {
  int64_t rows = 0, columns = 0;
  SpreadRows spread;
  Float8Format to;
  const uint16_t* x = nullptr;
  uint8_t* values = nullptr;
  float* inverse = nullptr;
};

// Each column with the scale of its amax [batch, columns], turned: values [batch, columns, rows], inverse
// [batch, columns]. Of spread rows with the scales of their groups' columns, amax and inverse [groups, columns].
struct Float8Columns {
  int64_t batch = 1, rows = 0, columns = 0;
  int64_t groups = 1;  // Of spread rows.
  SpreadRows spread;
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
