#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// Moves tokens into the order of their experts and back. Every pass is a gather in a fixed order, so that there are no
// atomic additions and the bits do not depend on the threads. Matrices have contiguous rows. Positions are row numbers
// and are not checked.
namespace titan::kernels {

// Sorts the rows token * choices + choice by expert. Rows of one expert keep their order. Declines if an expert is out
// of range.
struct OrderRows {
  int64_t tokens = 0, choices = 1, experts = 0;
  const int64_t* chosen = nullptr;  // [tokens, choices]
  int64_t* rows = nullptr;          // [tokens * choices]: row at each sorted position.
  int64_t* row_tokens = nullptr;    // [tokens * choices]: its token.
  int64_t* places = nullptr;        // [tokens, choices]: sorted position of each row.
};
bool order_rows(const OrderRows& args);

// y[i] = x[from[i]] for i below count, exactly: spreads tokens over sorted rows, or applies any permutation.
struct GatherRows {
  int64_t count = 0, width = 0;
  Dtype type = Dtype::kBf16;
  const void* x = nullptr;        // [rows, width], for any number of rows.
  const int64_t* from = nullptr;  // [count]
  void* y = nullptr;              // [count, width]
  int threads = 1;
};
bool gather_rows(Level level, const GatherRows& args);

// y[t] = sum over c of weights[t][c] * x[places[t][c]], in fp32 in the order of c, rounded once. Combines the experts'
// rows, and is the backward pass of spreading. The error is at most 2e-7 * choices of the sum of magnitudes, plus the
// rounding.
struct SumRows {
  int64_t tokens = 0, choices = 1, width = 0;
  Dtype type = Dtype::kBf16;
  const void* x = nullptr;          // [rows, width], which `places` index.
  const int64_t* places = nullptr;  // [tokens, choices]; null: t * choices + c.
  const float* weights = nullptr;   // [tokens, choices]; null: ones.
  void* y = nullptr;                // [tokens, width]
  int threads = 1;
};
bool sum_rows(Level level, const SumRows& args);

// Computes the gradients of a weighted SumRows: dx[places[t][c]] = weights[t][c] * dy[t], dweights[t][c] = dy[t] .
// x[places[t][c]]. Each position occurs once. The error of dweights is at most 1e-6 of the sum of magnitudes per 4,096
// elements of a row.
struct SumRowsBackward {
  int64_t tokens = 0, choices = 1, width = 0;
  Dtype type = Dtype::kBf16;
  const void* x = nullptr;          // [rows, width], which `places` index.
  const int64_t* places = nullptr;  // [tokens, choices]; null: t * choices + c.
  const float* weights = nullptr;   // [tokens, choices]; may be null if dx is.
  const void* dy = nullptr;         // [tokens, width]
  void* dx = nullptr;               // Shape of x, and may be x. Null: only dweights.
  float* dweights = nullptr;        // [tokens, choices]
  int threads = 1;
};
bool sum_rows_backward(Level level, const SumRowsBackward& args);

}  // namespace titan::kernels
