#pragma once

#include <cmath>

#include "worker/rank/kernels/cpu/cross_entropy.h"
#include "worker/rank/kernels/cuda/numbers.h"
#include "worker/rank/kernels/cuda/rows.h"

namespace titan::kernels::device {

struct Softmax {
  float maximum, sum;  // `sum` adds up exp(logit - maximum).
};

// Rescales a sum from one maximum to a greater one. Equal maxima may be infinite.
TITAN_BODY float shrunk(float sum, float maximum, float greater) {
  return maximum == greater ? sum : sum * expf(maximum - greater);
}

struct Merge {
  TITAN_BODY Softmax operator()(Softmax a, Softmax b) const {
    const float maximum = fmaxf(a.maximum, b.maximum);
    return {maximum, shrunk(a.sum, a.maximum, maximum) + shrunk(b.sum, b.maximum, maximum)};
  }
};

// Takes N logits at a time and reads each once.
template <typename T, int N>
struct SoftmaxRow {
  SoftmaxChunk a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t token) const {
    const T* row = at<T>(a.logits, token * a.stride);
    const Softmax before = {a.first ? -INFINITY : a.maximum[token], a.first ? 0.0F : a.sum[token]};
    const Softmax here = team.fold(
        a.vocabulary / N, Softmax{-INFINITY, 0},
        [=](Softmax so_far, int64_t pack) {
          const Pack<N> logit = load<N>(row + pack * N);
          float maximum = so_far.maximum;
          TITAN_UNROLL
          for (int i = 0; i < N; ++i) maximum = fmaxf(maximum, logit.v[i]);
          const float shift = maximum == -INFINITY ? 0 : maximum;  // A pack of only -infinity adds 0.
          float sum = 0;
          TITAN_UNROLL
          for (int i = 0; i < N; ++i) sum += expf(logit.v[i] - shift);
          return Softmax{maximum, shrunk(so_far.sum, so_far.maximum, maximum) + sum};
        },
        Merge());
    team.once([&, this] {
      const Softmax both = Merge()(before, here);
      a.maximum[token] = both.maximum;
      a.sum[token] = both.sum;
      const int64_t place = a.labels[token] - a.first_id;
      if (a.first) a.label_logit[token] = 0;
      if (place >= 0 && place < a.vocabulary) a.label_logit[token] = load<1>(row + place).v[0];
    });
  }
};

template <typename T, int N>
struct LogitGradient {
  CrossEntropyGradient a;
  const float* scale;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t token) const {
    const T* row = at<T>(a.logits, token * a.stride);
    T* gradient = at<T>(a.gradient, token * a.gradient_stride);
    if (a.labels[token] == a.ignored) {
      return team.each(a.vocabulary / N, [=](int64_t pack) { store(gradient + pack * N, all<N>(0)); });
    }
    const float shift = a.maximum[token], whole = *scale, factor = whole / a.sum[token];
    const int64_t place = a.labels[token] - a.first_id;
    team.each(a.vocabulary / N, [=](int64_t pack) {
      const Pack<N> logit = load<N>(row + pack * N);
      store(gradient + pack * N, each_of<N>([&](int i) {
              const float softmax = expf(logit.v[i] - shift) * factor;
              return pack * N + i == place ? softmax - whole : softmax;
            }));
    });
  }
};

// One team sums over all tokens.
struct SumOfLosses {
  CrossEntropyLoss a;
  float* loss;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t) const {
    const double total = team.fold(
        a.tokens, 0.0,
        [=, *this](double so_far, int64_t token) {
          if (a.labels[token] == a.ignored) return so_far;
          const double below = static_cast<double>(a.maximum[token]) - a.label_logit[token];
          return so_far + (log(static_cast<double>(a.sum[token])) + below);
        },
        Sum());
    team.once([&, this] { *loss = static_cast<float>(total); });
  }
};

template <typename T, typename Grid>
void softmax_chunk(const SoftmaxChunk& a, Grid& grid) {
  if (a.vocabulary % kVector == 0 && lie_at_16(a.logits, a.stride * int64_t{sizeof(T)})) {
    return grid(SoftmaxRow<T, kVector>{a}, a.tokens, threads_for(a.vocabulary / kVector));
  }
  grid(SoftmaxRow<T, 1>{a}, a.tokens, threads_for(a.vocabulary));
}

template <typename T, typename Grid>
void cross_entropy_gradient(const CrossEntropyGradient& a, const float* scale, Grid& grid) {
  constexpr int64_t kSize = sizeof(T);
  if (a.vocabulary % kVector == 0 && lie_at_16(a.logits, a.stride * kSize, a.gradient, a.gradient_stride * kSize)) {
    return grid(LogitGradient<T, kVector>{a, scale}, a.tokens, threads_for(a.vocabulary / kVector));
  }
  grid(LogitGradient<T, 1>{a, scale}, a.tokens, threads_for(a.vocabulary));
}

template <typename Grid>
void cross_entropy_loss(const CrossEntropyLoss& a, float* loss, Grid& grid) {
  grid(SumOfLosses{a, loss}, 1, threads_for(a.tokens));
}

}  // namespace titan::kernels::device
