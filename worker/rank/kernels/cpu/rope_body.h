#pragma once

#include "worker/rank/kernels/cpu/parts.h"
#include "worker/rank/kernels/cpu/rope.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

template <typename T, bool inverse>
TITAN_INLINE void rotate_neighbours(const T* x, T* y, const float* table, int64_t dim) {
  for_vectors(dim, [=](int64_t i, auto lanes) {
    const Floats value = load(x + i, lanes), rotation = load(table + i, lanes);
    const Floats crossed = swap_pairs(value) * odd_twice(rotation);
    const Floats cosine = even_twice(rotation);
    store(y + i, inverse ? plus_minus(value, cosine, crossed) : minus_plus(value, cosine, crossed), lanes);
  });
}

template <typename T, bool inverse>
TITAN_INLINE void rotate_halves(const T* x, T* y, const float* table, int64_t dim) {
  const int64_t half = dim / 2;
  for_vectors(half, [=](int64_t i, auto lanes) {
    const Floats first = load(x + i, lanes), second = load(x + half + i, lanes);
    const Floats cosine = load(table + i, lanes), sine = load(table + half + i, lanes);
    const Floats a = second * sine, b = first * sine;
    store(y + i, inverse ? fma(first, cosine, a) : fma(first, cosine, splat(0) - a), lanes);
    store(y + half + i, inverse ? fma(second, cosine, splat(0) - b) : fma(second, cosine, b), lanes);
  });
}

template <typename T, bool inverse>
void turn_tokens(const RopeRotation& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / a.tokens, token = row % a.tokens;
    const float* table = a.table + a.dim * (a.positions == nullptr ? token : a.positions[token]);
    const T* x = at<T>(a.x, batch * a.x_batch + token * a.x_token);
    T* y = at<T>(a.y, batch * a.y_batch + token * a.y_token);
    for (int64_t head = 0; head < a.heads; ++head, x += a.x_head, y += a.y_head) {
      a.halves ? rotate_halves<T, inverse>(x, y, table, a.dim) : rotate_neighbours<T, inverse>(x, y, table, a.dim);
    }
  }
}

}  // namespace

void rope(const RopeRotation& a) {
  in_parts(a.threads, a.batches * a.tokens, [&](int64_t begin, int64_t end) {
    if (a.type == Dtype::kF32) {
      a.inverse ? turn_tokens<float, true>(a, begin, end) : turn_tokens<float, false>(a, begin, end);
    } else {
      a.inverse ? turn_tokens<uint16_t, true>(a, begin, end) : turn_tokens<uint16_t, false>(a, begin, end);
    }
  });
}

}  // namespace titan::kernels::TITAN_LEVEL
