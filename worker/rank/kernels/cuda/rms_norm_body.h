#pragma once

#include <cmath>

#include "worker/rank/kernels/cpu/rms_norm.h"
#include "worker/rank/kernels/cuda/numbers.h"
#include "worker/rank/kernels/cuda/rows.h"
#include "worker/rank/kernels/device_kernels.h"

namespace titan::kernels::device {

// Normalizes a row, N numbers at a time.
template <typename T, int N>
struct NormRow {
  RmsNormForward a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t row) const {
    const int64_t packs = a.dim / N;
    const T* x = at<T>(a.x, row * a.x_stride);
    if (a.residual != nullptr) {
      const T* residual = at<T>(a.residual, row * a.residual_stride);
      T* sum = at<T>(a.sum, row * a.sum_stride);
      team.each(packs, [=](int64_t pack) {
        const Pack<N> left = load<N>(x + pack * N), right = load<N>(residual + pack * N);
        store(sum + pack * N, each_of<N>([&](int i) { return left.v[i] + right.v[i]; }));
      });
      x = sum;
    }
    const float squares = team.fold(
        packs, 0.0F,
        [=](float so_far, int64_t pack) {
          const Pack<N> value = load<N>(x + pack * N);
          float sum = 0;
          TITAN_UNROLL
          for (int i = 0; i < N; ++i) sum += value.v[i] * value.v[i];
          return so_far + sum;
        },
        Sum());
    const float inverse_rms = 1 / sqrtf(squares / static_cast<float>(a.dim) + static_cast<float>(a.eps));
    if (a.inverse_rms != nullptr) team.once([&] { a.inverse_rms[row] = inverse_rms; });
    const T* weight = static_cast<const T*>(a.weight);
    T* y = at<T>(a.y, row * a.y_stride);
    team.each(packs, [=](int64_t pack) {
      const Pack<N> value = load<N>(x + pack * N), scale = load_or<N>(weight, pack * N, 1);
      store(y + pack * N, each_of<N>([&](int i) { return value.v[i] * inverse_rms * scale.v[i]; }));
    });
  }
};

// Computes the gradients of one part of the rows. Their share of the weight's gradient goes to this part of the
// scratch.
template <typename T, int N>
struct NormGradients {
  RmsNormBackward a;
  int64_t parts;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t part) const {
    const int64_t packs = a.dim / N;
    float* scratch = a.dweight == nullptr ? nullptr : a.scratch + part * a.dim;
    float* dweight = scratch == nullptr || team.memory() == nullptr ? scratch : team.memory();
    if (dweight != nullptr) team.each(packs, [=](int64_t pack) { store(dweight + pack * N, all<N>(0)); });
    for (int64_t row = a.rows * part / parts; row < a.rows * (part + 1) / parts; ++row) gradient(team, row, dweight);
    if (dweight != scratch) {
      team.each(packs, [=](int64_t pack) { store(scratch + pack * N, load<N>(dweight + pack * N)); });
    }
  }

  template <typename Team>
  TITAN_BODY void gradient(Team& team, int64_t row, float* dweight) const {
    const int64_t packs = a.dim / N;
    const T *weight = static_cast<const T*>(a.weight), *x = at<T>(a.x, row * a.x_stride);
    const T *dy = at<T>(a.dy, row * a.dy_stride),
            *also = a.also == nullptr ? nullptr : at<T>(a.also, row * a.also_stride);
    T* dx = at<T>(a.dx, row * a.dx_stride);
    const float inverse_rms = a.inverse_rms[row];
    const float along = team.fold(
        packs, 0.0F,
        [=](float so_far, int64_t pack) {
          const Pack<N> value = load<N>(x + pack * N), g = load<N>(dy + pack * N),
                        scale = load_or<N>(weight, pack * N, 1);
          float sum = 0;
          TITAN_UNROLL
          for (int i = 0; i < N; ++i) sum += value.v[i] * inverse_rms * (g.v[i] * scale.v[i]);
          return so_far + sum;
        },
        Sum());
    const float mean = along / static_cast<float>(a.dim);
    team.each(packs, [=](int64_t pack) {
      const Pack<N> value = load<N>(x + pack * N), g = load<N>(dy + pack * N), scale = load_or<N>(weight, pack * N, 1),
                    more = load_or<N>(also, pack * N, 0);
      const Pack<N> normed = each_of<N>([&](int i) { return value.v[i] * inverse_rms; });
      if (dweight != nullptr) {
        const Pack<N> so_far = load<N>(dweight + pack * N);
        store(dweight + pack * N, each_of<N>([&](int i) { return so_far.v[i] + g.v[i] * normed.v[i]; }));
      }
      store(dx + pack * N,
            each_of<N>([&](int i) { return (g.v[i] * scale.v[i] - normed.v[i] * mean) * inverse_rms + more.v[i]; }));
    });
  }
};

// Sums the parts to one number of the weight's gradient.
template <typename Out>
struct AddParts {
  const float* parts;
  int64_t num_parts, dim;
  Out* dweight;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t column) const {
    const float* first = parts + column;
    const float total = team.fold(
        num_parts, 0.0F, [=, *this](float so_far, int64_t part) { return so_far + first[part * dim]; }, Sum());
    team.once([&] { store(dweight + column, Pack<1>{{total}}); });
  }
};

template <typename T, typename Grid>
void rms_norm_forward(const RmsNormForward& a, Grid& grid) {
  constexpr int64_t kSize = sizeof(T);
  const bool residual = a.residual != nullptr;
  if (a.dim % kVector == 0 && lie_at_16(a.x, a.x_stride * kSize, a.y, a.y_stride * kSize, a.weight) &&
      (!residual || lie_at_16(a.residual, a.residual_stride * kSize, a.sum, a.sum_stride * kSize))) {
    return grid(NormRow<T, kVector>{a}, a.rows, threads_for(a.dim / kVector));
  }
  grid(NormRow<T, 1>{a}, a.rows, threads_for(a.dim));
}

template <typename T, typename Grid>
void rms_norm_backward(const RmsNormBackward& a, Grid& grid) {
  constexpr int64_t kSize = sizeof(T);
  const int64_t parts = device_rms_norm_parts(a.rows, a.dim), floats = a.dweight == nullptr ? 0 : a.dim;
  if (a.dim % kVector == 0 &&
      lie_at_16(a.x, a.x_stride * kSize, a.dy, a.dy_stride * kSize, a.dx, a.dx_stride * kSize, a.weight, a.scratch) &&
      (a.also == nullptr || lie_at_16(a.also, a.also_stride * kSize))) {
    grid(NormGradients<T, kVector>{a, parts}, parts, threads_for(a.dim / kVector), floats);
  } else {
    grid(NormGradients<T, 1>{a, parts}, parts, threads_for(a.dim), floats);
  }
  if (a.dweight == nullptr) return;
  if (a.dweight_type == Dtype::kF32) {
    grid.columns(AddParts<float>{a.scratch, parts, a.dim, static_cast<float*>(a.dweight)}, a.dim);
  } else {
    grid.columns(AddParts<uint16_t>{a.scratch, parts, a.dim, static_cast<uint16_t*>(a.dweight)}, a.dim);
  }
}

}  // namespace titan::kernels::device
