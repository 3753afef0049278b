#pragma once

#include <math.h>
#include <string.h>

#include "worker/rank/kernels/cpu/flat.h"
#include "worker/rank/kernels/cpu/parts.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

constexpr int64_t kFlatBlock = 4096;  // Elements that one thread processes at a time.

template <typename From, typename To>
TITAN_INLINE void cast_block(const From* from, To* to, int64_t count) {
  for_vectors(count, [=](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
}

void cast_block(const CastRows& args, int64_t row, int64_t first, int64_t count) {
  const int64_t from = row * args.from_stride + first, to = row * args.to_stride + first;
  if (args.from_type == args.to_type) {
    const int64_t size = args.to_type == Dtype::kF32 ? sizeof(float) : sizeof(uint16_t);
    memcpy(static_cast<char*>(args.to) + to * size, static_cast<const char*>(args.from) + from * size, count * size);
  } else if (args.from_type == Dtype::kF32) {
    cast_block(at<float>(args.from, from), at<uint16_t>(args.to, to), count);
  } else {
    cast_block(at<uint16_t>(args.from, from), at<float>(args.to, to), count);
  }
}

template <typename T>
double sum_of_squares(const T* values, int64_t count) {
  Doubles sums[2] = {no_doubles(), no_doubles()};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    sums[0] = add_squares(load(values + i, All{}), sums[0]);
    sums[1] = add_squares(load(values + i + kLanes, All{}), sums[1]);
  }
  for_vectors(count - i, [&](int64_t j, auto lanes) { sums[0] = add_squares(load(values + i + j, lanes), sums[0]); });
  return sum(sums[0]) + sum(sums[1]);
}

struct AdamFactors {
  Floats gradient, keep_average, keep_square, new_square, step, inverse_root, eps, shrink, decay;
};

AdamFactors factors_of(const Adam& a) {
  const auto narrowed = [](double value) { return splat(static_cast<float>(value)); };
  return {.gradient = splat(a.gradient_factor == nullptr ? 1.0F : *a.gradient_factor),
          .keep_average = narrowed(1 - a.beta1),
          .keep_square = narrowed(a.beta2),
          .new_square = narrowed(1 - a.beta2),
          .step = narrowed(a.learning_rate / a.correction1),
          .inverse_root = narrowed(1 / sqrt(a.correction2)),
          .eps = narrowed(a.eps),
          .shrink = narrowed(a.decoupled ? 1 - a.learning_rate * a.weight_decay : 1),
          .decay = narrowed(a.decoupled ? 0 : a.weight_decay)};
}

template <typename Gradient>
void adam_block(const Adam& a, const AdamFactors& f, int64_t first, int64_t count) {
  const Gradient* gradient = at<Gradient>(a.gradient, first);
  float *values = a.value + first, *averages = a.average + first, *squares = a.square + first;
  for_vectors(count, [&](int64_t i, auto lanes) {
    const Floats old = load(values + i, lanes), average_before = load(averages + i, lanes);
    const Floats g = fma(old, f.decay, load(gradient + i, lanes) * f.gradient);
    const Floats average = fma(f.keep_average, g - average_before, average_before);
    const Floats square = fma(load(squares + i, lanes), f.keep_square, g * g * f.new_square);
    const Floats denominator = fma(root(square), f.inverse_root, f.eps);
    store(averages + i, average, lanes);
    store(squares + i, square, lanes);
    store(values + i, minus_fma(f.step, average / denominator, old * f.shrink), lanes);
  });
}

}  // namespace

void cast_rows(const CastRows& args) {
  CastRows a = args;
  if (a.from_stride == a.width && a.to_stride == a.width) {
    a.width *= a.rows;
    a.rows = 1;
  }
  const int64_t blocks = (a.width + kFlatBlock - 1) / kFlatBlock;
  in_parts(a.threads, a.rows * blocks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % blocks * kFlatBlock, left = a.width - first;
      cast_block(a, i / blocks, first, left < kFlatBlock ? left : kFlatBlock);
    }
  });
}

void squared_norm(const SquaredNorm& a) {
  constexpr int64_t kParts = 64;
  double parts[kParts];
  in_parts(a.threads, kParts, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = a.count * part / kParts, count = a.count * (part + 1) / kParts - first;
      parts[part] = a.type == Dtype::kF32 ? sum_of_squares(at<float>(a.values, first), count)
                                          : sum_of_squares(at<uint16_t>(a.values, first), count);
    }
  });
  double total = 0;
  for (const double part : parts) total += part;
  *a.result = total;
}

void adam(const Adam& a) {
  if (a.skip != nullptr && *a.skip) return;
  const AdamFactors factors = factors_of(a);
  const int64_t blocks = (a.count + kFlatBlock - 1) / kFlatBlock;
  in_parts(a.threads, blocks, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kFlatBlock, last = end * kFlatBlock < a.count ? end * kFlatBlock : a.count;
    if (a.gradient_type == Dtype::kF32) {
      adam_block<float>(a, factors, first, last - first);
    } else {
      adam_block<uint16_t>(a, factors, first, last - first);
    }
  });
}

}  // namespace titan::kernels::TITAN_LEVEL
