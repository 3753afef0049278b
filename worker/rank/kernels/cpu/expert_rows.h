#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// How tokens get into the order of their experts and back. Every pass is a gather in a fixed order: no atomic
// additions, and bits that do not depend on the threads. Matrices have their rows side by side; places name rows and
// are not checked.
namespace titan::kernels {

// The rows token * choices + choice sorted by expert; equal experts keep their order. Declined: an expert out of range.
struct OrderRows {
  int64_t tokens = 0, choices = 1, experts = 0;
  const int64_t* chosen = nullptr;  // [tokens, choices]
  int64_t* rows = nullptr;          // [tokens * choices]: the row that stands at each sorted place,
  int64_t* row_tokens = nullptr;    // and its token.
  int64_t* places = nullptr;        // [tokens, choices]: the sorted place of each row.
};
bool order_rows(const OrderRows& args);

// y[i] = x[from[i]], for i below count: tokens spread over sorted rows, or any permutation. Exact.
struct GatherRows {
  int64_t count = 0, width = 0;
  Dtype type = Dtype::kBf16;
  const void* x = nullptr;
  const int64_t* from = nullptr;
  void* y = nullptr;
  int threads = 1;
};
bool gather_rows(Level level, const GatherRows& args);

// y[t] = sum over c of weights[t][c] * x[places[t][c]] in fp32, in the order of c, rounded once: combines the experts'
// rows, and is the backward pass of spreading. Within 2e-7 choices of the sum of the magnitudes beside the rounding.
struct SumRows {
  int64_t tokens = 0, choices = 1, width = 0;
  Dtype type = Dtype::kBf16;
  const void* x = nullptr;
  const int64_t* places = nullptr;  // [tokens, choices]; null: t * choices + c.
  const float* weights = nullptr;   // [tokens, choices]; null: ones.
  void* y = nullptr;                // [tokens, width]
  int threads = 1;
};
bool sum_rows(Level level, const SumRows& args);

// The gradients of a weighted SumRows: dx[places[t][c]] = weights[t][c] * dy[t], dweights[t][c] = dy[t] .
// x[places[t][c]]. Each place is named once. dweights is within 1e-6 of the sum of the magnitudes for each 4,096
// elements of a row.
struct SumRowsBackward {
  int64_t tokens = 0, choices = 1, width = 0;
  Dtype type = Dtype::kBf16;
  const void* x = nullptr;
  const int64_t* places = nullptr;
  const float* weights = nullptr;
  const void* dy = nullptr;
  void* dx = nullptr;  // May be x. Null: dweights alone.
  float* dweights = nullptr;
  int threads = 1;
};
bool sum_rows_backward(Level level, const SumRowsBackward& args);

}  // namespace titan::kernels
