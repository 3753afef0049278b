#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// Rotary positions (Su et al., arXiv 2104.09864) on x [batches, tokens, heads, dim]; strides in elements, the channels
// side by side. A head that turns only in part is given as that part, by pointer and dim. Row p of the table, fp32 [_,
// dim], is the rotation of position p:
//   neighbours  channels 2i and 2i + 1 turn together, table (cos, sin) of each pair side by side;
//   halves      channels i and i + dim / 2 turn together, table the cosines and then the sines.
// Backward is the same with `inverse`: the transposed rotation. Within 2e-7 of the truth relative to the pair's length
// times the factor, beside the rounding. Declined: odd dim.
struct Rope {
  int64_t batches = 1, tokens = 0, heads = 1, dim = 0;
  Dtype type = Dtype::kBf16;  // Of x and y.
  const void* x = nullptr;
  int64_t x_batch = 0, x_token = 0, x_head = 0;
  void* y = nullptr;  // May be x, with its strides.
  int64_t y_batch = 0, y_token = 0, y_head = 0;
  const float* table = nullptr;
  const int64_t* positions = nullptr;  // [tokens], the same for every batch; null: 0, 1, ...
  bool halves = false;
  bool inverse = false;
  int threads = 1;
};
bool rope(Level level, const Rope& args);

}  // namespace titan::kernels
