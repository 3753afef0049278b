#pragma once

#include <cmath>

#include "worker/rank/kernels/cpu/swiglu.h"
#include "worker/rank/kernels/cuda/numbers.h"
#include "worker/rank/kernels/cuda/rows.h"

namespace titan::kernels::device {

template <int N>
struct GateAndLinear {
  Pack<N> gate, linear;
};

// Loads N numbers of both. A null `linear` means that they alternate in `gate`.
template <int N, typename T>
TITAN_BODY GateAndLinear<N> load_both(const T* gate, const T* linear, int64_t i) {
  if (linear != nullptr) return {load<N>(gate + i), load<N>(linear + i)};
  const Pack<N> mixed[2] = {load<N>(gate + 2 * i), load<N>(gate + 2 * i + N)};
  return {each_of<N>([&](int k) { return mixed[2 * k / N].v[2 * k % N]; }),
          each_of<N>([&](int k) { return mixed[(2 * k + 1) / N].v[(2 * k + 1) % N]; })};
}
template <int N, typename T>
TITAN_BODY void store_both(T* gate, T* linear, int64_t i, const GateAndLinear<N>& both) {
  if (linear != nullptr) {
    store(gate + i, both.gate);
    return store(linear + i, both.linear);
  }
  const auto mixed = [&](int k) { return k % 2 == 0 ? both.gate.v[k / 2] : both.linear.v[k / 2]; };
  store(gate + 2 * i, each_of<N>(mixed));
  store(gate + 2 * i + N, each_of<N>([&](int k) { return mixed(N + k); }));
}

TITAN_BODY float sigmoid(float x) { return 1 / (1 + expf(-x)); }

constexpr float kGeluSlope = 1.702F;  // x sigmoid(1.702 x) is the sigmoid form of GELU.

// These comparisons let NaN through.
TITAN_BODY float at_most(float limit, float x) { return x > limit ? limit : x; }
TITAN_BODY float within(float limit, float x) { return x > limit ? limit : x < -limit ? -limit : x; }

// A limit of 0 means none.
TITAN_BODY float activate(float gate, float linear, float limit) {
  if (limit == 0) return gate * sigmoid(gate) * linear;
  gate = at_most(limit, gate);
  return gate * sigmoid(kGeluSlope * gate) * (within(limit, linear) + 1);
}

struct GluGradient {
  float gate, linear;
};
TITAN_BODY GluGradient glu_gradient(float gate, float linear, float dy, float limit) {
  const bool clamped = limit > 0;
  const float slope = clamped ? kGeluSlope : 1.0F, g = clamped ? at_most(limit, gate) : gate;
  const float l = clamped ? within(limit, linear) : linear, factor = clamped ? l + 1 : l;
  const float part = sigmoid(slope * g);
  // Clamped inputs have no gradient.
  return {!clamped || gate <= limit ? dy * factor * (part * (1 + slope * g * (1 - part))) : 0,
          !clamped || l == linear ? dy * g * part : 0};
}

// Takes N numbers at a time.
template <typename T, int N>
struct GluRow {
  SwigluForward a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t row) const {
    const T* gate = at<T>(a.gate, row * a.gate_stride);
    const T* linear = a.linear == nullptr ? nullptr : at<T>(a.linear, row * a.linear_stride);
    T* y = at<T>(a.y, row * a.y_stride);
    team.each(a.width / N, [=, limit = a.limit](int64_t pack) {
      const GateAndLinear<N> x = load_both<N>(gate, linear, pack * N);
      store(y + pack * N, each_of<N>([&](int k) { return activate(x.gate.v[k], x.linear.v[k], limit); }));
    });
  }
};

template <typename T, int N>
struct GluGradients {
  SwigluBackward a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t row) const {
    const T *gate = at<T>(a.gate, row * a.gate_stride), *dy = at<T>(a.dy, row * a.dy_stride);
    const T* linear = a.linear == nullptr ? nullptr : at<T>(a.linear, row * a.linear_stride);
    T* dgate = at<T>(a.dgate, row * a.dgate_stride);
    T* dlinear = a.dlinear == nullptr ? nullptr : at<T>(a.dlinear, row * a.dlinear_stride);
    team.each(a.width / N, [=, limit = a.limit](int64_t pack) {
      const GateAndLinear<N> x = load_both<N>(gate, linear, pack * N);
      const Pack<N> g = load<N>(dy + pack * N);
      GateAndLinear<N> result;
      TITAN_UNROLL
      for (int k = 0; k < N; ++k) {
        const GluGradient one = glu_gradient(x.gate.v[k], x.linear.v[k], g.v[k], limit);
        result.gate.v[k] = one.gate;
        result.linear.v[k] = one.linear;
      }
      store_both(dgate, dlinear, pack * N, result);
    });
  }
};

template <typename T, typename Grid>
void swiglu_forward(const SwigluForward& a, Grid& grid) {
  constexpr int64_t kSize = sizeof(T);
  if (a.width % kVector == 0 &&
      lie_at_16(a.gate, a.gate_stride * kSize, a.linear, a.linear_stride * kSize, a.y, a.y_stride * kSize)) {
    return grid(GluRow<T, kVector>{a}, a.rows, threads_for(a.width / kVector));
  }
  grid(GluRow<T, 1>{a}, a.rows, threads_for(a.width));
}

template <typename T, typename Grid>
void swiglu_backward(const SwigluBackward& a, Grid& grid) {
  constexpr int64_t kSize = sizeof(T);
  if (a.width % kVector == 0 &&
      lie_at_16(a.gate, a.gate_stride * kSize, a.linear, a.linear_stride * kSize, a.dy, a.dy_stride * kSize, a.dgate,
                a.dgate_stride * kSize, a.dlinear, a.dlinear_stride * kSize)) {
    return grid(GluGradients<T, kVector>{a}, a.rows, threads_for(a.width / kVector));
  }
  grid(GluGradients<T, 1>{a}, a.rows, threads_for(a.width));
}

}  // namespace titan::kernels::device
