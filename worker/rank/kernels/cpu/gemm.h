#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// GEMMs of bf16 matrices with fp32 sums. Operands are packed into panels once, and depth is cut in fixed blocks with
// sums added in order, so the bits do not depend on the threads (Goto and van de Geijn, doi 10.1145/1356052.1356053).
// With groups (experts), rows belong to one group after the other, and each group has a separate matrix. Every size is
// accepted. The error of sums is at most 1e-6 of the sum of magnitudes per 1,024 of depth, plus the rounding. Functions
// return false without scratch. The machine must have the level.
namespace titan::kernels {

// c = a b^T, or with `b_is_deep` c = a b: a layer's output from its weights [columns, depth], or its input's gradient.
// With `add`, c += that, rounded once.
struct Gemm {
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t groups = 1;
  const int64_t* group_rows = nullptr;  // [groups], together `rows`. Null: one group has them all.
  const uint16_t* a = nullptr;          // [rows, depth]. Strides are in elements from row to row.
  int64_t a_stride = 0;
  const uint16_t* b = nullptr;  // [groups, columns, depth], or if deep [groups, depth, columns].
  int64_t b_stride = 0, b_group = 0;
  bool b_is_deep = false;
  void* c = nullptr;  // [rows, columns]
  Dtype c_type = Dtype::kBf16;
  int64_t c_stride = 0;
  bool add = false;
  void* scratch = nullptr;  // gemm_scratch(columns, depth, threads) bytes, aligned to 64.
  int threads = 1;
};
bool gemm(Level level, const Gemm& args);

// c = dy^T x over each group's rows. A group without rows gets zeros.
struct WeightGradient {
  int64_t rows = 0, outputs = 0, inputs = 0;
  int64_t groups = 1;
  const int64_t* group_rows = nullptr;  // [groups], together `rows`. Null: one group has them all.
  const uint16_t* dy = nullptr;         // [rows, outputs]
  int64_t dy_stride = 0;
  const uint16_t* x = nullptr;  // [rows, inputs]
  int64_t x_stride = 0;
  void* c = nullptr;  // [groups, outputs, inputs]
  Dtype c_type = Dtype::kBf16;
  int64_t c_stride = 0, c_group = 0;
  void* scratch = nullptr;  // gemm_scratch(inputs, most rows of a group, threads) bytes, aligned to 64.
  int threads = 1;
};
bool weight_gradient(Level level, const WeightGradient& args);

// Bytes of scratch that suffice for any level: a packed operand, and per thread a block of the other operand and of
// sums.
constexpr int64_t kGemmBlockRows = 256;
constexpr int64_t kGemmBlockDepth = 1024;
constexpr int64_t gemm_panels(int64_t columns) { return (columns + 31) / 32 * 32; }
constexpr int64_t gemm_thread_scratch(int64_t columns) {
  return static_cast<int64_t>(sizeof(float)) * kGemmBlockRows * (kGemmBlockDepth + gemm_panels(columns));
}
constexpr int64_t gemm_scratch(int64_t columns, int64_t depth, int threads) {
  return static_cast<int64_t>(sizeof(float)) * gemm_panels(columns) * gemm_panels(depth) +
         threads * gemm_thread_scratch(columns);
}

}  // namespace titan::kernels
