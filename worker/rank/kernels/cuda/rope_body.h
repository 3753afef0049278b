#pragma once

#include "worker/rank/kernels/cpu/rope.h"
#include "worker/rank/kernels/cuda/numbers.h"
#include "worker/rank/kernels/cuda/rows.h"

namespace titan::kernels::device {

// Rotates all heads of one token of one batch. A thread rotates N numbers of each half at a time, or N neighbouring
// channels (two if N is 1).
template <typename T, int N>
struct TurnToken {
  RopeRotation a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t row) const {
    const int64_t batch = row / a.tokens, token = row % a.tokens;
    const float* table = a.table + a.dim * (a.positions == nullptr ? token : a.positions[token]);
    const T* x = at<T>(a.x, batch * a.x_batch + token * a.x_token);
    T* y = at<T>(a.y, batch * a.y_batch + token * a.y_token);
    // Channels of a token are counted in 32 bits, because a GPU divides those faster.
    const auto a_head = static_cast<uint32_t>(items());
    team.each(a.heads * items(), [=, *this](int64_t item) {
      const uint32_t head = static_cast<uint32_t>(item) / a_head, of_head = static_cast<uint32_t>(item) % a_head;
      const T* from = x + head * a.x_head;
      T* to = y + head * a.y_head;
      a.halves ? rotate_halves(from, to, table, of_head) : rotate_neighbours(from, to, table, of_head);
    });
  }

  // Work items per head.
#if defined(__CUDACC__)
  __host__ __device__
#endif
      int64_t
      items() const {
    return a.halves ? a.dim / 2 / N : a.dim / kNeighbours;
  }

 private:
  static constexpr int kNeighbours = N == 1 ? 2 : N;

  TITAN_BODY void rotate_halves(const T* x, T* y, const float* table, int64_t item) const {
    const int64_t i = item * N, half = a.dim / 2;
    const float sign = a.inverse ? -1.0F : 1.0F;
    const Pack<N> first = load<N>(x + i), second = load<N>(x + half + i);
    const Pack<N> cosine = load<N>(table + i), sine = load<N>(table + half + i);
    const auto turned = [&](int k) { return first.v[k] * cosine.v[k] - second.v[k] * (sign * sine.v[k]); };
    const auto turned_too = [&](int k) { return second.v[k] * cosine.v[k] + first.v[k] * (sign * sine.v[k]); };
    store(y + i, each_of<N>(turned));
    store(y + half + i, each_of<N>(turned_too));
  }

  TITAN_BODY void rotate_neighbours(const T* x, T* y, const float* table, int64_t item) const {
    const int64_t i = item * kNeighbours;
    const float sign = a.inverse ? -1.0F : 1.0F;
    const Pack<kNeighbours> value = load<kNeighbours>(x + i), rotation = load<kNeighbours>(table + i);
    store(y + i, each_of<kNeighbours>([&](int k) {
            const int even = k & ~1, odd = k | 1;
            const float cosine = rotation.v[even], sine = k == odd ? sign * rotation.v[odd] : -sign * rotation.v[odd];
            return value.v[k] * cosine + value.v[k ^ 1] * sine;
          }));
  }
};

template <typename T, typename Grid>
void rope(const RopeRotation& a, Grid& grid) {
  constexpr int64_t kSize = sizeof(T);
  const int64_t tokens = a.batches * a.tokens;
  const auto run = [&](const auto& body) { grid(body, tokens, threads_for(a.heads * body.items())); };
  if ((a.halves ? a.dim / 2 : a.dim) % kVector == 0 && a.dim % 2 == 0 &&
      lie_at_16(a.x, a.x_batch * kSize, a.x_token * kSize, a.x_head * kSize, a.y, a.y_batch * kSize, a.y_token * kSize,
                a.y_head * kSize, a.table)) {
    return run(TurnToken<T, kVector>{a});
  }
  run(TurnToken<T, 1>{a});
}

}  // namespace titan::kernels::device
