#pragma once

#include <cmath>

#include "worker/rank/kernels/cpu/low_bit_adam.h"
#include "worker/rank/kernels/cuda/numbers.h"
#include "worker/rank/kernels/cuda/rows.h"
#include "worker/rank/kernels/device_kernels.h"
#include "worker/rank/random/random_math.h"

// One step of Adam with moments in fewer bits (worker/rank/kernels/cpu/low_bit_adam.h), one block of 256 neighbours per
// team. Sums and products are the CPU's, fused where it fuses them and nowhere else (low_bit_adam.cu).
namespace titan::kernels::device {

constexpr int64_t kMoments = 256;  // Numbers per block.

struct LowBitAdamFactors {
  float gradient, keep_average, keep_square, new_square, step, inverse_root, eps, shrink, decay, random_step;
};
static_assert(sizeof(LowBitAdamFactors) == kLowBitAdamScratch * sizeof(float));

// Computes what all blocks of a step share, from numbers in device memory.
struct FindFactors {
  LowBitAdam a;
  DeviceStep where;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t) const {
    team.once([&] {
      const double number = *where.step;
      const auto narrow = [](double value) { return static_cast<float>(value); };
      *reinterpret_cast<LowBitAdamFactors*>(where.scratch) = {
          .gradient = 1 / (where.divisor == nullptr ? 1.0F : *where.divisor),
          .keep_average = narrow(1 - a.beta1),
          .keep_square = narrow(a.beta2),
          .new_square = narrow(1 - a.beta2),
          .step = narrow(a.learning_rate / (1 - pow(a.beta1, number))),
          .inverse_root = narrow(1 / sqrt(1 - pow(a.beta2, number))),
          .eps = narrow(a.eps),
          .shrink = narrow(a.decoupled ? 1 - a.learning_rate * a.weight_decay : 1),
          .decay = narrow(a.decoupled ? 0 : a.weight_decay),
          .random_step = *where.step};
    });
  }
};

// Returns a word of a Philox stream in the layout of worker/rank/nn/random.h: chunks of 64, word by word of 16
// counters.
TITAN_BODY uint32_t random_word(uint64_t key, uint32_t step, int64_t index) {
  const auto counter = static_cast<uint64_t>(index / 64 * 16 + index % 16);
  uint32_t words[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), step, 0};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  TITAN_UNROLL
  for (int round = 0; round < 10; ++round) {
    random::philox_round(words, k0, k1);
    k0 += random::kPhiloxKey0;
    k1 += random::kPhiloxKey1;
  }
  const int64_t which = index % 64 / 16;
  return which < 2 ? (which == 0 ? words[0] : words[1]) : (which == 2 ? words[2] : words[3]);
}

// Rounds to bf16 stochastically: up if the lower half plus a random half carries. Infinities and NaN round to nearest.
TITAN_BODY uint16_t stochastic_round_to_bf16(float x, uint32_t word) {
  const uint32_t bits = random::bits_of(x);
  if ((bits & 0x7f800000) == 0x7f800000) return static_cast<uint16_t>(narrowed(x, 0));
  return static_cast<uint16_t>((bits + (word >> 16)) >> 16);
}

// Returns the code nearest to r, which has a magnitude of at most 1.
TITAN_BODY uint8_t code_of(const DynamicMap& map, float r) {
  const uint32_t bits = random::bits_of(r), magnitude = bits & 0x7fffffff;
  int32_t cell = static_cast<int32_t>(magnitude >> 16) - DynamicMap::kFirstCell;
  cell = cell < 0 ? 0 : cell >= DynamicMap::kCells ? DynamicMap::kCells - 1 : cell;
  int32_t step = map.cells[cell];
  if (map.bounds[step] < random::float_of(magnitude)) ++step;
  const int32_t below = map.zero - (step < map.zero ? step : map.zero);
  return static_cast<uint8_t>(bits >> 31 != 0 ? below : map.zero + step);
}

// Greatest and negated least number of a block. `bad` is NaN unless all are finite.
struct Extremes {
  float high, low, bad;
};
struct MoreExtreme {
  TITAN_BODY Extremes operator()(const Extremes& a, const Extremes& b) const {
    return {a.high > b.high ? a.high : b.high, a.low > b.low ? a.low : b.low, a.bad + b.bad};
  }
};

// Takes N numbers at a time.
template <typename Number, int N>
struct LowBitAdamBlock {
  LowBitAdam a;
  DeviceStep where;
  int64_t blocks;  // Blocks per row.

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t i) const {
    if (where.skip != nullptr && *where.skip != 0) return;
    const int64_t row = i / blocks, begin = i % blocks * kMoments - a.first_column % kMoments;
    const int64_t from = begin < 0 ? 0 : begin, to = begin + kMoments < a.columns ? begin + kMoments : a.columns;
    const int64_t first = row * a.columns + from, index = a.first_index + row * a.index_stride + from;
    float *averages = team.memory(), *squares = averages + kMoments;
    Number* values = at<Number>(a.value, first);
    const Number* gradients = at<Number>(a.gradient, first);
    const LowBitAdamFactors f = *reinterpret_cast<const LowBitAdamFactors*>(where.scratch);
    team.each((to - from) / N, [=, *this](int64_t pack) {
      const int64_t k = pack * N;
      const Pack<N> old = load<N>(values + k), gradient = load<N>(gradients + k);
      Pack<N> average = read(a.average, first + k, i), square = read(a.square, first + k, i), value;
      TITAN_UNROLL
      for (int n = 0; n < N; ++n) {
        const float g = fmaf(old.v[n], f.decay, gradient.v[n] * f.gradient);
        average.v[n] = fmaf(f.keep_average, g - average.v[n], average.v[n]);
        square.v[n] = fmaf(square.v[n], f.keep_square, g * g * f.new_square);
        const float denominator = fmaf(sqrtf(square.v[n]), f.inverse_root, f.eps);
        value.v[n] = fmaf(-f.step, average.v[n] / denominator, old.v[n] * f.shrink);
      }
      put(values + k, value, index + k, f);
      store(averages + k, average);
      store(squares + k, square);
    });
    write(team, a.average, averages, first, to - from, i);
    write(team, a.square, squares, first, to - from, i);
  }

 private:
  TITAN_BODY Pack<N> read(const KeptMoment& kept, int64_t k, int64_t block) const {
    switch (a.form) {
      case KeptMoment::Form::kF32:
        return load<N>(at<float>(kept.numbers, k));
      case KeptMoment::Form::kBf16:
        return load<N>(at<uint16_t>(kept.numbers, k));
      case KeptMoment::Form::kCodes:
        break;
    }
    const uint8_t* codes = at<uint8_t>(kept.numbers, k);
    const float *values = kept.map->values, scale = kept.scales[block];
    if constexpr (N == kVector) {
      const Codes all = load_codes(codes);
      return each_of<N>([&](int n) { return values[all.w[n / 4] >> n % 4 * 8 & 0xff] * scale; });
    } else {
      return each_of<N>([&](int n) { return values[codes[n]] * scale; });
    }
  }

  TITAN_BODY void put(float* to, const Pack<N>& x, int64_t, const LowBitAdamFactors&) const { store(to, x); }
  TITAN_BODY void put(uint16_t* to, const Pack<N>& x, int64_t index, const LowBitAdamFactors& f) const {
    if (!a.stochastic) return store(to, x);
    const auto step = static_cast<uint32_t>(f.random_step);
    for (int n = 0; n < N; ++n) to[n] = stochastic_round_to_bf16(x.v[n], random_word(a.random_key, step, index + n));
  }

  template <typename Team>
  TITAN_BODY void write(Team& team, const KeptMoment& kept, const float* numbers, int64_t first, int64_t count,
                        int64_t block) const {
    if (a.form != KeptMoment::Form::kCodes) {
      return team.each(count / N, [=, form = a.form](int64_t pack) {
        const Pack<N> some = load<N>(numbers + pack * N);
        if (form == KeptMoment::Form::kF32) store(at<float>(kept.numbers, first + pack * N), some);
        if (form == KeptMoment::Form::kBf16) store(at<uint16_t>(kept.numbers, first + pack * N), some);
      });
    }
    const Extremes found = team.fold(
        count / N, Extremes{0, 0, 0},
        [=](Extremes so_far, int64_t pack) {
          const Pack<N> some = load<N>(numbers + pack * N);
          TITAN_UNROLL
          for (int n = 0; n < N; ++n) so_far = MoreExtreme()({some.v[n], -some.v[n], some.v[n] * 0}, so_far);
          return so_far;
        },
        MoreExtreme());
    const float scale = found.high >= found.low ? found.high : -found.low, divisor = scale == 0 ? 1 : scale;
    team.once([&] { kept.scales[block] = scale + found.bad; });
    team.each(count / N, [=](int64_t pack) {
      const Pack<N> some = load<N>(numbers + pack * N);
      uint8_t* codes = at<uint8_t>(kept.numbers, first + pack * N);
      if constexpr (N == kVector) {
        const auto four = [&](int n) {
          const auto code = [&](int m) { return uint32_t{code_of(*kept.map, some.v[n + m] / divisor)} << m * 8; };
          return code(0) | code(1) | code(2) | code(3);
        };
        store_codes(codes, {{four(0), four(4)}});
      } else {
        for (int n = 0; n < N; ++n) codes[n] = code_of(*kept.map, some.v[n] / divisor);
      }
    });
  }
};

template <typename Number, typename Grid>
void low_bit_adam_blocks(const LowBitAdam& a, const DeviceStep& where, Grid& grid) {
  const int64_t blocks = (a.first_column % kMoments + a.columns + kMoments - 1) / kMoments;
  const bool by_eights = a.columns % kVector == 0 && a.first_column % kVector == 0 &&
                         lie_at_16(a.value, a.gradient, a.average.numbers, a.square.numbers);
  if (by_eights) {
    grid(LowBitAdamBlock<Number, kVector>{a, where, blocks}, a.rows * blocks, 32, 2 * kMoments);
  } else {
    grid(LowBitAdamBlock<Number, 1>{a, where, blocks}, a.rows * blocks, 32, 2 * kMoments);
  }
}

template <typename Grid>
void low_bit_adam(const LowBitAdam& a, const DeviceStep& where, Grid& grid) {
  grid(FindFactors{a, where}, 1, 32);
  a.type == Dtype::kF32 ? low_bit_adam_blocks<float>(a, where, grid) : low_bit_adam_blocks<uint16_t>(a, where, grid);
}

}  // namespace titan::kernels::device
