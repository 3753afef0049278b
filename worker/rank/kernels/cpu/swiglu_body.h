#pragma once

#include "worker/rank/kernels/cpu/parts.h"
#include "worker/rank/kernels/cpu/swiglu.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

struct GateAndLinear {
  Floats gate, linear;
};

TITAN_INLINE GateAndLinear load_alternating(const uint16_t* from, All all) {
  const Ints pairs = load_pairs(from, all);
  return {even_of(pairs), odd_of(pairs)};
}
TITAN_INLINE GateAndLinear load_alternating(const uint16_t* from, First first) {
  const Ints pairs = load_pairs(from, first);
  return {even_of(pairs), odd_of(pairs)};
}
TITAN_INLINE GateAndLinear load_alternating(const float* from, All all) {
  GateAndLinear both;
  deinterleave(load(from, all), load(from + kLanes, all), both.gate, both.linear);
  return both;
}
TITAN_INLINE GateAndLinear load_alternating(const float* from, First first) {
  GateAndLinear both;
  deinterleave(load(from, lower_of(first)), load(from + kLanes, upper_of(first)), both.gate, both.linear);
  return both;
}

template <typename Lanes>
TITAN_INLINE void store_alternating(uint16_t* to, GateAndLinear both, Lanes lanes) {
  store_pairs(to, pairs_of(both.gate, both.linear), lanes);
}
TITAN_INLINE void store_alternating(float* to, GateAndLinear both, All all) {
  Floats low, high;
  interleave(both.gate, both.linear, low, high);
  store(to, low, all);
  store(to + kLanes, high, all);
}
TITAN_INLINE void store_alternating(float* to, GateAndLinear both, First first) {
  Floats low, high;
  interleave(both.gate, both.linear, low, high);
  store(to, low, lower_of(first));
  store(to + kLanes, high, upper_of(first));
}

// A null `linear` means that gate and linear part alternate in `gate`.
template <typename T, typename Lanes>
TITAN_INLINE GateAndLinear load_both(const T* gate, const T* linear, int64_t i, Lanes lanes) {
  if (linear == nullptr) return load_alternating(gate + 2 * i, lanes);
  return {load(gate + i, lanes), load(linear + i, lanes)};
}
template <typename T, typename Lanes>
TITAN_INLINE void store_both(T* gate, T* linear, int64_t i, GateAndLinear both, Lanes lanes) {
  if (linear == nullptr) return store_alternating(gate + 2 * i, both, lanes);
  store(gate + i, both.gate, lanes);
  store(linear + i, both.linear, lanes);
}

TITAN_INLINE Floats sigmoid(Floats x) { return splat(1) / (splat(1) + exponential(splat(0) - x)); }

constexpr float kSlope = 1.702F;  // x sigmoid(1.702 x) is the sigmoid form of GELU.

// The limit comes first, so that NaN stays NaN.
TITAN_INLINE Floats at_most(Floats limit, Floats x) { return smaller(limit, x); }
TITAN_INLINE Floats within(Floats limit, Floats x) { return smaller(limit, larger(splat(0) - limit, x)); }

TITAN_INLINE Floats activate(GateAndLinear x) { return x.gate * sigmoid(x.gate) * x.linear; }
TITAN_INLINE Floats activate_clamped(GateAndLinear x, Floats limit) {
  const Floats gate = at_most(limit, x.gate);
  return gate * sigmoid(gate * splat(kSlope)) * (within(limit, x.linear) + splat(1));
}

TITAN_INLINE GateAndLinear gradients(GateAndLinear x, Floats dy) {
  const Floats part = sigmoid(x.gate);
  const Floats slope = part * fma(x.gate, splat(1) - part, splat(1));
  return {dy * x.linear * slope, dy * x.gate * part};
}
TITAN_INLINE GateAndLinear gradients_clamped(GateAndLinear x, Floats dy, Floats limit) {
  const Floats gate = at_most(limit, x.gate), linear = within(limit, x.linear);
  const Floats part = sigmoid(gate * splat(kSlope));
  const Floats slope = part * fma(gate * splat(kSlope), splat(1) - part, splat(1));
  const Mask free_gate = is_less_equal(x.gate, limit), free_linear = is_equal(x.linear, linear);
  return {choose(free_gate, dy * (linear + splat(1)) * slope, splat(0)),
          choose(free_linear, dy * gate * part, splat(0))};
}

template <typename T>
void swiglu_rows(const SwigluForward& a, int64_t begin, int64_t end) {
  const Floats limit = splat(a.limit);
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = at<T>(a.gate, row * a.gate_stride);
    const T* linear = a.linear == nullptr ? nullptr : at<T>(a.linear, row * a.linear_stride);
    T* y = at<T>(a.y, row * a.y_stride);
    for_vectors(a.width, [&](int64_t i, auto lanes) {
      const GateAndLinear x = load_both(gate, linear, i, lanes);
      store(y + i, a.limit > 0 ? activate_clamped(x, limit) : activate(x), lanes);
    });
  }
}

template <typename T>
void swiglu_gradients(const SwigluBackward& a, int64_t begin, int64_t end) {
  const Floats limit = splat(a.limit);
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = at<T>(a.gate, row * a.gate_stride), *dy = at<T>(a.dy, row * a.dy_stride);
    const T* linear = a.linear == nullptr ? nullptr : at<T>(a.linear, row * a.linear_stride);
    T* dgate = at<T>(a.dgate, row * a.dgate_stride);
    T* dlinear = a.dlinear == nullptr ? nullptr : at<T>(a.dlinear, row * a.dlinear_stride);
    for_vectors(a.width, [&](int64_t i, auto lanes) {
      const GateAndLinear x = load_both(gate, linear, i, lanes);
      const Floats g = load(dy + i, lanes);
      store_both(dgate, dlinear, i, a.limit > 0 ? gradients_clamped(x, g, limit) : gradients(x, g), lanes);
    });
  }
}

}  // namespace

void swiglu_forward(const SwigluForward& a) {
  in_parts(a.threads, a.rows, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? swiglu_rows<float>(a, begin, end) : swiglu_rows<uint16_t>(a, begin, end);
  });
}

void swiglu_backward(const SwigluBackward& a) {
  in_parts(a.threads, a.rows, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? swiglu_gradients<float>(a, begin, end) : swiglu_gradients<uint16_t>(a, begin, end);
  });
}

}  // namespace titan::kernels::TITAN_LEVEL
