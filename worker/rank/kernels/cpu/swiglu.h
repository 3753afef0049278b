#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// Gated activations (Shazeer, arXiv 2002.05202) of rows [rows, width]; strides in elements from row to row. The gate
// and the linear part are two matrices (two projections, or halves of one), or alternate in one: then `linear` is null,
// and `gate` names rows of 2 width, gates at even places. Results are rounded once.
namespace titan::kernels {

// Without a limit y = silu(gate) linear. With one, GPT-OSS's form: with g = min(gate, limit), y = g sigmoid(1.702 g)
// (clamp(linear, -limit, limit) + 1). Relative to the truth within 1e-6 + 2e-7 |gate| beside the rounding; 0 where a
// sigmoid would be a denormal.
struct SwigluForward {
  int64_t rows = 0, width = 0;
  Dtype type = Dtype::kBf16;
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  const void* linear = nullptr;  // Null: alternates with the gate.
  int64_t linear_stride = 0;
  void* y = nullptr;  // May be gate or linear, where these are matrices of their own.
  int64_t y_stride = 0;
  float limit = 0;  // 0: none.
  int threads = 1;
};
bool swiglu_forward(Level level, const SwigluForward& args);

// The gradients of both from dy and forward's inputs, laid out as these; what is clamped has none. dgate is within 2e-6
// of |dy| (|linear| + 1) (1 + |gate|), dlinear as close as y, beside the rounding.
struct SwigluBackward {
  int64_t rows = 0, width = 0;
  Dtype type = Dtype::kBf16;
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  const void* linear = nullptr;
  int64_t linear_stride = 0;
  const void* dy = nullptr;
  int64_t dy_stride = 0;
  void* dgate = nullptr;  // May be gate; with `linear`, any of the inputs.
  int64_t dgate_stride = 0;
  void* dlinear = nullptr;  // Null exactly when `linear` is.
  int64_t dlinear_stride = 0;
  float limit = 0;
  int threads = 1;
};
bool swiglu_backward(Level level, const SwigluBackward& args);

}  // namespace titan::kernels
