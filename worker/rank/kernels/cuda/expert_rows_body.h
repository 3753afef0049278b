#pragma once

#include "worker/rank/kernels/cpu/expert_rows.h"
#include "worker/rank/kernels/cuda/numbers.h"
#include "worker/rank/kernels/cuda/rows.h"

namespace titan::kernels::device {

// Computes a token's row: gathers its choices' rows, weights them and sums them in order. N numbers at a time.
template <typename T, int N>
struct SumOfChoices {
  SumRows a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t token) const {
    T* y = at<T>(a.y, token * a.width);
    team.each(a.width / N, [=, *this](int64_t pack) {
      Pack<N> total = all<N>(0);
      for (int64_t row = token * a.choices; row < (token + 1) * a.choices; ++row) {
        const int64_t place = a.places == nullptr ? row : a.places[row];
        const float weight = a.weights == nullptr ? 1.0F : a.weights[row];
        const Pack<N> x = load<N>(at<T>(a.x, place * a.width + pack * N));
        TITAN_UNROLL
        for (int i = 0; i < N; ++i) total.v[i] += weight * x.v[i];
      }
      store(y + pack * N, total);
    });
  }
};

// Computes a choice's gradients: its row's, written at the row's position, and its weight's. N numbers at a time.
template <typename T, int N>
struct GradientsOfChoice {
  SumRowsBackward a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t row) const {
    const int64_t place = (a.places == nullptr ? row : a.places[row]) * a.width;
    const T *x = at<T>(a.x, place), *dy = at<T>(a.dy, row / a.choices * a.width);
    T* dx = a.dx == nullptr ? nullptr : at<T>(a.dx, place);
    const float weight = dx == nullptr ? 0 : a.weights[row];
    const float dweight = team.fold(
        a.width / N, 0.0F,
        [=](float so_far, int64_t pack) {
          const Pack<N> value = load<N>(x + pack * N), g = load<N>(dy + pack * N);
          float sum = 0;
          TITAN_UNROLL
          for (int i = 0; i < N; ++i) sum += g.v[i] * value.v[i];
          if (dx != nullptr) store(dx + pack * N, each_of<N>([&](int i) { return g.v[i] * weight; }));
          return so_far + sum;
        },
        Sum());
    team.once([&] { a.dweights[row] = dweight; });
  }
};

template <typename T, typename Grid>
void sum_rows(const SumRows& a, Grid& grid) {
  if (a.width % kVector == 0 && lie_at_16(a.x, a.y)) {
    return grid(SumOfChoices<T, kVector>{a}, a.tokens, threads_for(a.width / kVector));
  }
  grid(SumOfChoices<T, 1>{a}, a.tokens, threads_for(a.width));
}

template <typename T, typename Grid>
void sum_rows_backward(const SumRowsBackward& a, Grid& grid) {
  const int64_t rows = a.tokens * a.choices;
  if (a.width % kVector == 0 && lie_at_16(a.x, a.dy, a.dx)) {
    return grid(GradientsOfChoice<T, kVector>{a}, rows, threads_for(a.width / kVector));
  }
  grid(GradientsOfChoice<T, 1>{a}, rows, threads_for(a.width));
}

}  // namespace titan::kernels::device
