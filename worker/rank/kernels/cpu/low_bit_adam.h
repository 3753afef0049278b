#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/dynamic_map.h"
#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// Storage of one moment of Adam. With codes, number = map value of its code * scale of its block.
struct KeptMoment {
  enum class Form { kF32, kBf16, kCodes };
  void* numbers = nullptr;          // [rows, columns] of float, bf16 or uint8_t, by form.
  float* scales = nullptr;          // [rows, blocks per row]. Only for kCodes.
  const DynamicMap* map = nullptr;  // Only for kCodes.
};

// One step of Adam or AdamW, as flat.h defines it in fp32, over [rows, columns] numbers with moments in fewer bits. The
// moments are widened, updated, used for the value, and then rounded to their form: bf16 to the nearest, codes by
// blocks.
//
// A block is the part of 256 neighbours of the whole row that is here, so the first one lacks `first_column % 256`
// numbers. Its scale is its number of largest magnitude, with the sign, which is therefore stored exactly. Every other
// number x is stored as the code nearest to x / scale (dynamic_map.h states the error). So numbers read from codes
// become the same codes again. A block with a number that is not finite becomes all NaN. The scale of a block of zeros
// is 0.
//
// The bits depend neither on threads, nor on how rows are divided between calls, nor on cuts of a row at multiples of
// 256.
struct LowBitAdam {
  int64_t rows = 0, columns = 0;
  int64_t first_column = 0;
  void* value = nullptr;           // [rows, columns]
  const void* gradient = nullptr;  // [rows, columns], of the value's type.
  Dtype type = Dtype::kF32;
  KeptMoment::Form form = KeptMoment::Form::kF32;  // Form of both moments.
  KeptMoment average, square;
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double correction1 = 1, correction2 = 1;
  bool decoupled = true;
  float gradient_factor = 1;
  // Stochastic rounding, for bf16 values only: rounds to one of the two neighbours instead of the nearest, so that the
  // result is exact on average. The upper half of word `index % 64` of chunk `index / 64` of a Philox-4x32-10 stream
  // decides (in the order of worker/rank/nn/random.h, with `random_step` as the counter's third word). index =
  // first_index + row * index_stride + column. Infinities and NaN round to the nearest.
  bool stochastic = false;
  uint64_t random_key = 0;
  uint32_t random_step = 0;
  int64_t first_index = 0, index_stride = 0;
  int threads = 1;
};
bool low_bit_adam(Level level, const LowBitAdam& args);

}  // namespace titan::kernels
