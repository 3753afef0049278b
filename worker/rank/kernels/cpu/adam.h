#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// One step of Adam (L2 decay is added to the gradient) or AdamW (decoupled: the value shrinks by learning_rate *
// weight_decay first) over `count` numbers, each by itself: the bits do not depend on how a parameter is cut. With
// g = gradient * *gradient_factor:
//   average += (1 - beta1) (g - average);  square = beta2 square + (1 - beta2) g g
//   value -= learning_rate / correction1 * average / (sqrt(square) / sqrt(correction2) + eps)
// where correctionN = 1 - betaN^step. Every operation is rounded to fp32 once; denormals count as zero. Each result is
// within 1e-6 of fp64's relative to the larger of what is added there.
struct Adam {
  int64_t count = 0;
  float* value = nullptr;
  const void* gradient = nullptr;
  Dtype gradient_type = Dtype::kF32;
  float* average = nullptr;
  float* square = nullptr;
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double correction1 = 1, correction2 = 1;
  bool decoupled = true;
  const float* gradient_factor = nullptr;  // Null: 1. Read from memory, as is `skip`: the step before wrote them there.
  const bool* skip = nullptr;              // Not null and true: nothing is touched.
  int threads = 1;
};
bool adam(Level level, const Adam& args);

}  // namespace titan::kernels
