#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// Gated activations (Shazeer, arXiv 2002.05202) of rows [rows, width]. Strides are in elements from row to row. The
// gate and the linear part are two matrices (two projections, or halves of one), or alternate in one. Then `linear` is
// null, and `gate` has rows of 2 * width with gates at even positions. Results are rounded once.
namespace titan::kernels {

// Without a limit, y = silu(gate) linear. With one, GPT-OSS's form: with g = min(gate, limit), y = g sigmoid(1.702 g)
// (clamp(linear, -limit, limit) + 1). The relative error is at most 1e-6 + 2e-7 |gate| plus the rounding. y is 0 where
// a sigmoid would be denormal.
struct SwigluForward {
  int64_t rows = 0, width = 0;
  Dtype type = Dtype::kBf16;
  const void* gate = nullptr;  // [rows, width], or [rows, 2 * width] if alternating.
  int64_t gate_stride = 0;
  const void* linear = nullptr;  // [rows, width]. Null: alternates with the gate.
  int64_t linear_stride = 0;
  void* y = nullptr;  // [rows, width]. May be gate or linear if these are separate.
  int64_t y_stride = 0;
  float limit = 0;  // 0: none.
  int threads = 1;
};
bool swiglu_forward(Level level, const SwigluForward& args);

// Computes the gradients of both from dy and forward's inputs, in the same layout. Clamped inputs have none. The error
// of dgate is at most 2e-6 of |dy| (|linear| + 1) (1 + |gate|), that of dlinear like y's, plus the rounding.
struct SwigluBackward {
  int64_t rows = 0, width = 0;
  Dtype type = Dtype::kBf16;
  const void* gate = nullptr;  // [rows, width], or [rows, 2 * width] if alternating.
  int64_t gate_stride = 0;
  const void* linear = nullptr;  // [rows, width]. Null: alternates with the gate.
  int64_t linear_stride = 0;
  const void* dy = nullptr;  // [rows, width]
  int64_t dy_stride = 0;
  void* dgate = nullptr;  // Shape of gate. May be gate; with `linear`, any of the inputs.
  int64_t dgate_stride = 0;
  void* dlinear = nullptr;  // [rows, width]. Null exactly when `linear` is.
  int64_t dlinear_stride = 0;
  float limit = 0;
  int threads = 1;
};
bool swiglu_backward(Level level, const SwigluBackward& args);

}  // namespace titan::kernels
