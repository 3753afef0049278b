#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// Rotary position embedding (Su et al., arXiv 2104.09864) of x. Strides are in elements, and channels are contiguous.
// A head that is rotated only in part is passed as that part, by pointer and dim. Row p of the table is the rotation of
// position p:
//   neighbours  channels 2i and 2i + 1 rotate together, and the table has (cos, sin) of each pair side by side;
//   halves      channels i and i + dim / 2 rotate together, and the table has the cosines and then the sines.
// The backward pass is the same with `inverse`, the transposed rotation. The error is at most 2e-7 of the pair's length
// times the table's factor, plus the rounding. Declines an odd dim.
struct RopeRotation {
  int64_t batches = 1, tokens = 0, heads = 1, dim = 0;
  Dtype type = Dtype::kBf16;  // Type of x and y.
  const void* x = nullptr;    // [batches, tokens, heads, dim]
  int64_t x_batch = 0, x_token = 0, x_head = 0;
  void* y = nullptr;  // [batches, tokens, heads, dim]. May be x, with its strides.
  int64_t y_batch = 0, y_token = 0, y_head = 0;
  const float* table = nullptr;        // [positions, dim]
  const int64_t* positions = nullptr;  // [tokens], the same for every batch. Null: 0, 1, ...
  bool halves = false;
  bool inverse = false;
  int threads = 1;
};
bool rope(Level level, const RopeRotation& args);

}  // namespace titan::kernels
