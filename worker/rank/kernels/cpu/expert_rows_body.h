#pragma once

#include <string.h>

#include "worker/rank/kernels/cpu/expert_rows.h"
#include "worker/rank/kernels/cpu/parts.h"
#include "worker/rank/kernels/cpu/reductions.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

template <typename T>
void sum_tokens(const SumRows& a, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    T* y = at<T>(a.y, token * a.width);
    for_vectors(a.width, [&](int64_t i, auto lanes) {
      Floats total = splat(0);
      for (int64_t row = token * a.choices; row < (token + 1) * a.choices; ++row) {
        const T* x = at<T>(a.x, (a.places == nullptr ? row : a.places[row]) * a.width);
        total = fma(load(x + i, lanes), splat(a.weights == nullptr ? 1 : a.weights[row]), total);
      }
      store(y + i, total, lanes);
    });
  }
}

template <typename T>
void sum_gradients(const SumRowsBackward& a, int64_t begin, int64_t end) {
  for (int64_t row = begin * a.choices; row < end * a.choices; ++row) {
    const T* dy = at<T>(a.dy, row / a.choices * a.width);
    const int64_t place = (a.places == nullptr ? row : a.places[row]) * a.width;
    const T* x = at<T>(a.x, place);
    if (a.dx == nullptr) {
      a.dweights[row] =
          sum_over(a.width, [=](int64_t i, auto lanes) { return load(dy + i, lanes) * load(x + i, lanes); });
      continue;
    }
    T* dx = at<T>(a.dx, place);
    const Floats weight = splat(a.weights[row]);
    a.dweights[row] = sum_over(a.width, [=](int64_t i, auto lanes) {
      const Floats gradient = load(dy + i, lanes), product = gradient * load(x + i, lanes);
      store(dx + i, gradient * weight, lanes);
      return product;
    });
  }
}

}  // namespace

void gather_rows(const GatherRows& a) {
  const int64_t size = a.width * static_cast<int64_t>(a.type == Dtype::kF32 ? sizeof(float) : sizeof(uint16_t));
  in_parts(a.threads, a.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      memcpy(static_cast<char*>(a.y) + i * size, static_cast<const char*>(a.x) + a.from[i] * size, size);
    }
  });
}

void sum_rows(const SumRows& a) {
  in_parts(a.threads, a.tokens, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? sum_tokens<float>(a, begin, end) : sum_tokens<uint16_t>(a, begin, end);
  });
}

void sum_rows_backward(const SumRowsBackward& a) {
  in_parts(a.threads, a.tokens, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? sum_gradients<float>(a, begin, end) : sum_gradients<uint16_t>(a, begin, end);
  });
}

}  // namespace titan::kernels::TITAN_LEVEL
