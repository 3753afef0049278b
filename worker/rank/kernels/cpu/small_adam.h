#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/dynamic_map.h"
#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// Where one moment of Adam is kept. Codes: number = map value of its code * its block's scale.
struct KeptMoment {
  enum class Form { kF32, kBf16, kCodes };
  void* numbers = nullptr;          // [rows, columns] of the form: float, bf16 or uint8_t.
  float* scales = nullptr;          // [rows, blocks of a row]; kCodes alone.
  const DynamicMap* map = nullptr;  // kCodes alone.
};

// One step of Adam or AdamW, as flat.h has it in fp32, over [rows, columns] numbers whose moments are kept in fewer
// bits. They are widened, moved on, used for the value, and then rounded to what is kept: bf16 to the nearest, codes by
// blocks.
//
// A block is those of 256 neighbours of the whole row that are here; the first is `first_column % 256` short. Its scale
// is its number of largest magnitude, sign included, which is therefore kept exactly, and every other number of it x
// as the code nearest to x / scale (dynamic_map.h says how near). So numbers read from codes become the same codes when
// they are made codes again. A block with a number that is not finite becomes one of NaNs. Without numbers but zeros
// the scale is 0.
//
// Bits depend neither on threads nor on how rows are cut between calls, nor on cuts of a row at multiples of 256.
struct SmallAdam {
  int64_t rows = 0, columns = 0;
  int64_t first_column = 0;
  void* value = nullptr;           // [rows, columns]
  const void* gradient = nullptr;  // Likewise, of the value's type.
  Dtype type = Dtype::kF32;
  KeptMoment::Form form = KeptMoment::Form::kF32;  // Of both moments.
  KeptMoment average, square;
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double correction1 = 1, correction2 = 1;
  bool decoupled = true;
  float gradient_factor = 1;
  // bf16 values alone: instead of the nearest, one of the two neighbours, each as often as the exact result is near to
  // the other. Decided by the upper half of word `index % 64` of a Philox-4x32-10 stream's chunk `index / 64` (worker/
  // nn/random.h's order, with `random_step` as the counter's third word), index = first_index + row * index_stride +
  // column. What is not finite is rounded to the nearest.
  bool stochastic = false;
  uint64_t random_key = 0;
  uint32_t random_step = 0;
  int64_t first_index = 0, index_stride = 0;
  int threads = 1;
};
bool small_adam(Level level, const SmallAdam& args);

}  // namespace titan::kernels
