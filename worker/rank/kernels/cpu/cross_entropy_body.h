#pragma once

#include <math.h>
#include <string.h>

#include "worker/rank/kernels/cpu/cross_entropy.h"
#include "worker/rank/kernels/cpu/parts.h"
#include "worker/rank/kernels/cpu/reductions.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

struct Softmax {
  float maximum, sum;
};

// Merges one segment of a row into the result so far.
template <typename T>
Softmax merged(Softmax before, const T* segment, int64_t n) {
  const float maximum = fmaxf(before.maximum, largest_of(segment, n));
  const Floats shift = splat(maximum == -INFINITY ? 0 : maximum);  // A segment of only -infinity adds 0.
  const float sum = sum_over(
      n, [=](int64_t i, auto lanes) { return keep(exponential(load(segment + i, lanes) - shift), splat(0), lanes); });
  if (before.maximum == maximum) return {maximum, before.sum + sum};
  return {maximum, before.sum * lowest(exponential(splat(before.maximum - maximum))) + sum};
}

template <typename T>
void softmax_rows(const SoftmaxChunk& a, int64_t begin, int64_t end) {
  constexpr int64_t kSegment = 4096;  // After the pass for its maximum, it is still in the L1 cache for its sum.
  for (int64_t token = begin; token < end; ++token) {
    const T* row = at<T>(a.logits, token * a.stride);
    Softmax so_far = {a.first ? -INFINITY : a.maximum[token], a.first ? 0 : a.sum[token]};
    for (int64_t i = 0; i < a.vocabulary; i += kSegment) {
      so_far = merged(so_far, row + i, a.vocabulary - i < kSegment ? a.vocabulary - i : kSegment);
    }
    a.maximum[token] = so_far.maximum;
    a.sum[token] = so_far.sum;
    const int64_t place = a.labels[token] - a.first_id;
    if (a.first) a.label_logit[token] = 0;
    if (place >= 0 && place < a.vocabulary) a.label_logit[token] = lowest(load(row + place, First(1)));
  }
}

template <typename T>
void gradient_rows(const CrossEntropyGradient& a, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const T* row = at<T>(a.logits, token * a.stride);
    T* gradient = at<T>(a.gradient, token * a.gradient_stride);
    if (a.labels[token] == a.ignored) {
      memset(gradient, 0, a.vocabulary * sizeof(T));
      continue;
    }
    const Floats shift = splat(a.maximum[token]), factor = splat(a.scale / a.sum[token]);
    const auto softmax = [&](int64_t i, auto lanes) { return exponential(load(row + i, lanes) - shift) * factor; };
    const int64_t place = a.labels[token] - a.first_id;
    const bool here = place >= 0 && place < a.vocabulary;
    const Floats at_label = here ? softmax(place, First(1)) - splat(a.scale) : splat(0);
    for_vectors(a.vocabulary, [&](int64_t i, auto lanes) { store(gradient + i, softmax(i, lanes), lanes); });
    if (here) store(gradient + place, at_label, First(1));
  }
}

}  // namespace

void softmax_chunk(const SoftmaxChunk& a) {
  in_parts(a.threads, a.tokens, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? softmax_rows<float>(a, begin, end) : softmax_rows<uint16_t>(a, begin, end);
  });
}

void cross_entropy_gradient(const CrossEntropyGradient& a) {
  in_parts(a.threads, a.tokens, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? gradient_rows<float>(a, begin, end) : gradient_rows<uint16_t>(a, begin, end);
  });
}

}  // namespace titan::kernels::TITAN_LEVEL
