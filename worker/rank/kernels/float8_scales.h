#pragma once

#include <cstdint>

#include "worker/rank/kernels/cpu/float8_casts.h"

// Casts of bf16 to eight-bit floats with dynamic scales on a device, as worker/rank/nn/low_precision/float8.h defines
// them. bf16 is held as uint16_t, and matrices are row-major without gaps. scale = largest number of the format / amax,
// in fp32, with an amax of at least 1e-12. `power_of_two` rounds it down to a power of two. `inverse` receives 1 /
// scale. A NaN or an infinity makes all numbers of its scale NaN.
namespace titan::kernels {

// Layout of rows in which every group begins at a multiple of sixteen, as grouped GEMMs require. Null pointers mean
// that rows stay in place and form one group.
struct PaddedRows {
  const int32_t* source = nullptr;  // [rows]: x's row at this position. Negative: zeros.
  const int32_t* group = nullptr;   // [rows / 16]: group of these sixteen rows. Negative: none.
};

// Computes the layout for `count` rows, which hold one group after the other and then rows of no group. Rows of no
// group come after all groups and are read as zeros. `rows`, a multiple of sixteen, is at least count + 15 + 16 *
// groups.
struct FindPaddedRows {
  int64_t count = 0, groups = 0, rows = 0;
  const int32_t* ends = nullptr;   // [groups]: end of each group's rows.
  int32_t* source = nullptr;       // [rows]
  int32_t* group = nullptr;        // [rows / 16]
  int32_t* places = nullptr;       // [count]: position of each row in the layout.
  int32_t* spread_ends = nullptr;  // [groups]: end of each group in the layout, padding included.
};

struct Float8Format {
  Float8Type format = Float8Type::kE4m3;
  bool power_of_two = false;
};

// Raises amax to the greatest magnitude of x. NaN if x contains one.
struct Float8Amax {
  int64_t count = 0;
  const uint16_t* x = nullptr;  // [count]
  float* amax = nullptr;        // [1]
};

// Raises amax to the greatest magnitude of each column of x. With spread rows, each group has its own columns.
struct Float8ColumnAmax {
  int64_t batch = 1, rows = 0, columns = 0;
  PaddedRows spread;
  const uint16_t* x = nullptr;  // [batch, rows, columns]
  float* amax = nullptr;        // [batch, columns], or [groups, columns] with spread rows.
};

// Casts all numbers with the scale of one amax.
struct Float8Cast {
  int64_t count = 0;
  Float8Format to;
  const uint16_t* x = nullptr;  // [count]
  const float* amax = nullptr;  // [1]
  uint8_t* values = nullptr;    // [count]
  float* inverse = nullptr;     // [1]
};

// Casts each row with its own scale, which is 1 for a row of zeros between groups.
struct Float8Rows {
  int64_t rows = 0, columns = 0;
  PaddedRows spread;
  Float8Format to;
  const uint16_t* x = nullptr;  // [rows, columns]
  uint8_t* values = nullptr;    // [rows, columns]
  float* inverse = nullptr;     // [rows]
};

// Casts each column with the scale of its amax, and transposes. With spread rows, scales are those of each group's
// columns.
struct Float8Columns {
  int64_t batch = 1, rows = 0, columns = 0;
  int64_t groups = 1;  // Number of groups of the spread rows.
  PaddedRows spread;
  Float8Format to;
  const uint16_t* x = nullptr;  // [batch, rows, columns]
  const float* amax = nullptr;  // [batch, columns], or [groups, columns] with spread rows.
  uint8_t* values = nullptr;    // [batch, columns, rows]
  float* inverse = nullptr;     // Shape of amax.
};

// Transposes a matrix of bytes.
struct TransposeBytes {
  int64_t rows = 0, columns = 0;
  const uint8_t* from = nullptr;  // [rows, columns]
  uint8_t* to = nullptr;          // [columns, rows]
};

}  // namespace titan::kernels
