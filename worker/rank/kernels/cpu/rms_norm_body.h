#pragma once

#include <math.h>
#include <string.h>

#include "worker/rank/kernels/cpu/parts.h"
#include "worker/rank/kernels/cpu/reductions.h"
#include "worker/rank/kernels/cpu/rms_norm.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

template <typename T, typename Lanes>
TITAN_INLINE Floats load_or(const T* from, int64_t i, float otherwise, Lanes lanes) {
  return from == nullptr ? splat(otherwise) : load(from + i, lanes);
}

template <typename T>
void rms_norm_rows(const RmsNormForward& a, int64_t begin, int64_t end) {
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = at<T>(a.x, row * a.x_stride);
    if (a.residual != nullptr) {
      const T* residual = at<T>(a.residual, row * a.residual_stride);
      T* sum = at<T>(a.sum, row * a.sum_stride);
      for_vectors(
          a.dim, [&](int64_t i, auto lanes) { store(sum + i, load(x + i, lanes) + load(residual + i, lanes), lanes); });
      x = sum;
    }
    const float squares = sum_over(a.dim, [=](int64_t i, auto lanes) {
      const Floats value = load(x + i, lanes);
      return value * value;
    });
    const float inverse_rms = 1 / sqrtf(squares / static_cast<float>(a.dim) + static_cast<float>(a.eps));
    if (a.inverse_rms != nullptr) a.inverse_rms[row] = inverse_rms;
    T* y = at<T>(a.y, row * a.y_stride);
    for_vectors(a.dim, [=](int64_t i, auto lanes) {
      store(y + i, load(x + i, lanes) * splat(inverse_rms) * load_or(weight, i, 1, lanes), lanes);
    });
  }
}

// Computes the rows' gradients, and adds their share of the weight's to dweight [dim] unless that is null.
template <typename T>
void rms_norm_gradients(const RmsNormBackward& a, int64_t begin, int64_t end, float* dweight) {
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t row = begin; row < end; ++row) {
    const T *x = at<T>(a.x, row * a.x_stride), *dy = at<T>(a.dy, row * a.dy_stride);
    const T* also = a.also == nullptr ? nullptr : at<T>(a.also, row * a.also_stride);
    T* dx = at<T>(a.dx, row * a.dx_stride);
    const float inverse_rms = a.inverse_rms[row];
    const Floats scale = splat(inverse_rms);
    const float along = sum_over(a.dim, [=](int64_t i, auto lanes) {
      return load(x + i, lanes) * scale * (load(dy + i, lanes) * load_or(weight, i, 1, lanes));
    });
    const Floats mean = splat(along / static_cast<float>(a.dim));
    for_vectors(a.dim, [=](int64_t i, auto lanes) {
      const Floats n = load(x + i, lanes) * scale, g = load(dy + i, lanes);
      if (dweight != nullptr) store(dweight + i, fma(g, n, load(dweight + i, lanes)), lanes);
      const Floats turned = minus_fma(n, mean, g * load_or(weight, i, 1, lanes));
      store(dx + i, fma(turned, scale, load_or(also, i, 0, lanes)), lanes);
    });
  }
}

// Writes the sum of the parts, in order, to dweight [dim].
template <typename T>
void add_parts(const float* parts, int64_t dim, T* dweight) {
  for_vectors(dim, [=](int64_t i, auto lanes) {
    Floats total = load(parts + i, lanes);
    for (int64_t part = 1; part < kRmsNormParts; ++part) total = total + load(parts + part * dim + i, lanes);
    store(dweight + i, total, lanes);
  });
}

}  // namespace

void rms_norm_forward(const RmsNormForward& a) {
  in_parts(a.threads, a.rows, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? rms_norm_rows<float>(a, begin, end) : rms_norm_rows<uint16_t>(a, begin, end);
  });
}

void rms_norm_backward(const RmsNormBackward& a) {
  in_parts(a.threads, kRmsNormParts, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = a.rows * part / kRmsNormParts, last = a.rows * (part + 1) / kRmsNormParts;
      float* dweight = a.dweight == nullptr ? nullptr : a.scratch + part * a.dim;
      if (dweight != nullptr) memset(dweight, 0, a.dim * sizeof(float));
      a.type == Dtype::kF32 ? rms_norm_gradients<float>(a, first, last, dweight)
                            : rms_norm_gradients<uint16_t>(a, first, last, dweight);
    }
  });
  if (a.dweight == nullptr) return;
  a.dweight_type == Dtype::kF32 ? add_parts(a.scratch, a.dim, static_cast<float*>(a.dweight))
                                : add_parts(a.scratch, a.dim, static_cast<uint16_t*>(a.dweight));
}

}  // namespace titan::kernels::TITAN_LEVEL
