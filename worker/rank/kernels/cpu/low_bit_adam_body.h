#pragma once

#include "worker/rank/kernels/cpu/codes.h"
#include "worker/rank/kernels/cpu/flat_body.h"
#include "worker/rank/kernels/cpu/low_bit_adam.h"
#include "worker/rank/kernels/cpu/parts.h"
#include "worker/rank/random/random_math.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

constexpr int64_t kMost = 256;        // Numbers per block.
constexpr int64_t kRandomChunk = 64;  // Words that are drawn together.

// A block's moments in fp32 during the update.
struct Moments {
  alignas(64) float average[kMost];
  alignas(64) float square[kMost];
};

// Location of a block.
struct LowBitBlock {
  int64_t row = 0, first = 0, count = 0;  // `first` counts numbers of all rows.
  int64_t scale = 0;
  int64_t index = 0;  // Index of its first number in the random stream.
};

LowBitBlock block_at(const LowBitAdam& a, int64_t blocks, int64_t i) {
  const int64_t row = i / blocks, begin = i % blocks * kMost - a.first_column % kMost;
  const int64_t from = begin < 0 ? 0 : begin, to = begin + kMost < a.columns ? begin + kMost : a.columns;
  return {.row = row,
          .first = row * a.columns + from,
          .count = to - from,
          .scale = i,
          .index = a.first_index + row * a.index_stride + from};
}

TITAN_INLINE void read_moment(const KeptMoment& kept, KeptMoment::Form form, const LowBitBlock& block, float* to) {
  switch (form) {
    case KeptMoment::Form::kF32:
      return cast_block(at<float>(kept.numbers, block.first), to, block.count);
    case KeptMoment::Form::kBf16:
      return cast_block(at<uint16_t>(kept.numbers, block.first), to, block.count);
    case KeptMoment::Form::kCodes:
      break;
  }
  const uint8_t* codes = at<uint8_t>(kept.numbers, block.first);
  const Floats scale = splat(kept.scales[block.scale]);
  for_vectors(block.count, [&](int64_t i, auto lanes) {
    store(to + i, pick(kept.map->values, load_codes(codes + i, lanes)) * scale, lanes);
  });
}

void write_codes(const KeptMoment& kept, const LowBitBlock& block, const float* from) {
  Floats high = splat(0), low = splat(0), bad = splat(0);
  for_vectors(block.count, [&](int64_t i, auto lanes) {
    const Floats x = load(from + i, lanes);
    high = larger(x, high);
    low = larger(splat(0) - x, low);
    bad = fma(x, splat(0), bad);  // NaN unless x is finite.
  });
  const float top = largest(high), bottom = largest(low), scale = top >= bottom ? top : -bottom;
  kept.scales[block.scale] = scale + sum(bad);
  const Floats divisor = splat(scale == 0 ? 1 : scale);
  uint8_t* codes = at<uint8_t>(kept.numbers, block.first);
  for_vectors(block.count, [&](int64_t i, auto lanes) {
    store_codes(codes + i, code_of(*kept.map, load(from + i, lanes) / divisor), lanes);
  });
}

TITAN_INLINE void write_moment(const KeptMoment& kept, KeptMoment::Form form, const LowBitBlock& block,
                               const float* from) {
  switch (form) {
    case KeptMoment::Form::kF32:
      return cast_block(from, at<float>(kept.numbers, block.first), block.count);
    case KeptMoment::Form::kBf16:
      return cast_block(from, at<uint16_t>(kept.numbers, block.first), block.count);
    case KeptMoment::Form::kCodes:
      return write_codes(kept, block, from);
  }
}

// Writes a chunk's words in the order of worker/rank/nn/random.h.
void draw_chunk(uint64_t key, uint32_t step, int64_t chunk, uint32_t* out) {
  constexpr int kCounters = kRandomChunk / 4;
  alignas(64) uint32_t word[4][kCounters];
  for (int i = 0; i < kCounters; ++i) {
    const uint64_t counter = static_cast<uint64_t>(chunk) * kCounters + static_cast<uint64_t>(i);
    word[0][i] = static_cast<uint32_t>(counter);
    word[1][i] = static_cast<uint32_t>(counter >> 32);
    word[2][i] = step;
    word[3][i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kCounters; ++i) {
      uint32_t one[4] = {word[0][i], word[1][i], word[2][i], word[3][i]};
      random::philox_round(one, k0, k1);
      for (int w = 0; w < 4; ++w) word[w][i] = one[w];
    }
    k0 += random::kPhiloxKey0;
    k1 += random::kPhiloxKey1;
  }
  memcpy(out, word, sizeof word);
}

// One random word per number of a block.
struct RandomWords {
  alignas(64) uint32_t words[kMost + 2 * kRandomChunk];
  int64_t skip = 0;  // Words before the block's first.

  void draw(const LowBitAdam& a, const LowBitBlock& block) {
    const int64_t first = block.index / kRandomChunk, last = (block.index + block.count - 1) / kRandomChunk;
    for (int64_t chunk = first; chunk <= last; ++chunk)
      draw_chunk(a.random_key, a.random_step, chunk, words + (chunk - first) * kRandomChunk);
    skip = block.index - first * kRandomChunk;
  }
};

TITAN_INLINE void put(float* to, Floats x, const uint32_t*, auto lanes) { store(to, x, lanes); }
TITAN_INLINE void put(uint16_t* to, Floats x, const uint32_t* random, auto lanes) {
  random == nullptr ? store(to, x, lanes) : store_stochastic(to, x, random, lanes);
}

template <typename Number>
void move_block(const LowBitAdam& a, const AdamFactors& f, const LowBitBlock& block, Moments& moments,
                RandomWords& random) {
  Number* values = at<Number>(a.value, block.first);
  const Number* gradient = at<Number>(a.gradient, block.first);
  if (a.stochastic) random.draw(a, block);
  const uint32_t* words = a.stochastic ? random.words + random.skip : nullptr;
  for_vectors(block.count, [&](int64_t i, auto lanes) {
    const Floats old = load(values + i, lanes), average_before = load(moments.average + i, lanes);
    const Floats g = fma(old, f.decay, load(gradient + i, lanes) * f.gradient);
    const Floats average = fma(f.keep_average, g - average_before, average_before);
    const Floats square = fma(load(moments.square + i, lanes), f.keep_square, g * g * f.new_square);
    const Floats denominator = fma(root(square), f.inverse_root, f.eps);
    store(moments.average + i, average, lanes);
    store(moments.square + i, square, lanes);
    put(values + i, minus_fma(f.step, average / denominator, old * f.shrink), words == nullptr ? words : words + i,
        lanes);
  });
}

AdamFactors factors_of(const LowBitAdam& a) {
  return factors_of(Adam{.learning_rate = a.learning_rate,
                         .beta1 = a.beta1,
                         .beta2 = a.beta2,
                         .eps = a.eps,
                         .weight_decay = a.weight_decay,
                         .correction1 = a.correction1,
                         .correction2 = a.correction2,
                         .decoupled = a.decoupled,
                         .gradient_factor = &a.gradient_factor});
}

}  // namespace

void low_bit_adam(const LowBitAdam& a) {
  const AdamFactors factors = factors_of(a);
  const int64_t blocks = (a.first_column % kMost + a.columns + kMost - 1) / kMost;
  in_parts(a.threads, a.rows * blocks, [&](int64_t begin, int64_t end) {
    Moments moments;
    RandomWords random;
    for (int64_t i = begin; i < end; ++i) {
      const LowBitBlock block = block_at(a, blocks, i);
      read_moment(a.average, a.form, block, moments.average);
      read_moment(a.square, a.form, block, moments.square);
      if (a.type == Dtype::kF32) {
        move_block<float>(a, factors, block, moments, random);
      } else {
        move_block<uint16_t>(a, factors, block, moments, random);
      }
      write_moment(a.average, a.form, block, moments.average);
      write_moment(a.square, a.form, block, moments.square);
    }
  });
}

}  // namespace titan::kernels::TITAN_LEVEL
