#pragma once

#include <math.h>

#include "worker/rank/kernels/cpu/simd.h"

// Reduces the numbers of a row.
namespace titan::kernels::TITAN_LEVEL {
namespace {

// Sums term(offset, lanes) in two chains. A term must be 0 in absent lanes.
template <typename Term>
TITAN_INLINE float sum_over(int64_t n, Term term) {
  Floats first = splat(0), second = splat(0);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    first = first + term(i, All{});
    second = second + term(i + kLanes, All{});
  }
  for_vectors(n - i, [&](int64_t j, auto lanes) { first = first + term(i + j, lanes); });
  return sum(first + second);
}

// Returns the largest of n numbers, or minus infinity if there are none. NaNs may be ignored.
template <typename T>
float largest_of(const T* row, int64_t n) {
  Floats first = splat(-INFINITY), second = first;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    first = larger(first, load(row + i, All{}));
    second = larger(second, load(row + i + kLanes, All{}));
  }
  for_vectors(n - i, [&](int64_t j, auto lanes) {
    first = larger(first, keep(load(row + i + j, lanes), splat(-INFINITY), lanes));
  });
  return largest(larger(first, second));
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
