// Tests operations over flat buffers: copies into another type, the squared norm, Adam.
#include "worker/rank/kernels/cpu/flat.h"

#include "tests/worker/rank/kernels/harness.h"

namespace titan::kernels::testing {
namespace {

// Returns numbers that are hard to round: ties, carries into the exponent, denormals, infinities, NaNs.
std::vector<double> awkward(int64_t count, uint64_t seed) {
  Random random(seed);
  const std::vector<uint32_t> bits = {0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7f7fffff,
                                      0x7f800000, 0xff800000, 0x7fc00001, 0x00000001, 0x00008000,
                                      0x00018000, 0x80000000, 0x007fffff, 0x3fffffff};
  std::vector<double> values = random.normals(count);
  for (double& value : values) {
    if (random.pick(0, 2) == 0) value = float_of(bits[random.pick(0, static_cast<int64_t>(bits.size()) - 1)]);
  }
  return values;
}

TEST(CastTest, ConvertsBetweenTypesToTheNearestValue) {
  for (const auto& shape : {std::pair<int64_t, int64_t>{0, 8}, {1, 0}, {1, 1}, {3, 7}, {2, 16}, {5, 33}, {1, 9001}}) {
    const int64_t rows = shape.first, width = shape.second;
    for (const Dtype from_type : kBothTypes) {
      for (const Dtype to_type : kBothTypes) {
        at_every_level([&](Level level, int threads) {
          Random random(rows * 100 + width);
          const int64_t from_stride = width + random.pick(0, 3), to_stride = width + random.pick(0, 3);
          const Numbers from(from_type, awkward(rows * from_stride, 7), random.edge());
          const Numbers to(to_type, std::vector<double>(rows * to_stride, 42), random.edge());
          ASSERT_TRUE(cast_rows(level, {.rows = rows,
                                        .width = width,
                                        .from = from.data(),
                                        .from_type = from_type,
                                        .from_stride = from_stride,
                                        .to = to.data(),
                                        .to_type = to_type,
                                        .to_stride = to_stride,
                                        .threads = threads}));
          Numbers truth(to_type, std::vector<double>(rows * to_stride, 42));
          for (int64_t row = 0; row < rows; ++row) {
            for (int64_t i = 0; i < width; ++i) truth.set(row * to_stride + i, from.get(row * from_stride + i));
          }
          EXPECT_EQ(to.bits(), truth.bits()) << name(from_type) << " to " << name(to_type);
        });
      }
    }
  }
}

TEST(SquaredNormTest, IsTheSameForAnyNumberOfThreads) {
  for (const int64_t count : {0, 1, 5, 63, 64, 1000, 100003}) {
    for (const Dtype type : kBothTypes) {
      Random random(count);
      const Numbers values(type, random.normals(count), random.edge());
      long double truth = 0;
      for (const double value : values.values()) truth += static_cast<long double>(value) * value;
      for (const Level level : levels_here()) {
        double first = 0;
        for (const int threads : {1, 2, 3}) {
          double result = -1;
          ASSERT_TRUE(squared_norm(
              level, {.count = count, .values = values.data(), .type = type, .result = &result, .threads = threads}));
          EXPECT_NEAR(result, static_cast<double>(truth), 1e-14 * static_cast<double>(truth));
          if (threads == 1) first = result;
          EXPECT_EQ(result, first);
        }
      }
    }
  }
}

TEST(SquaredNormTest, HandlesTheLargestNumbersAndPropagatesNan) {
  for (const Level level : levels_here()) {
    const auto norm_of = [&](const std::vector<double>& values) {
      const Numbers numbers(Dtype::kF32, values);
      double result = -1;
      EXPECT_TRUE(squared_norm(level, {.count = numbers.size(), .values = numbers.data(), .result = &result}));
      return result;
    };
    const double huge = 3e38F;
    EXPECT_NEAR(norm_of(std::vector<double>(100, huge)), 100 * huge * huge, 1e-14 * 100 * huge * huge);
    EXPECT_EQ(norm_of({1, -kInfinity, 2}), kInfinity);
    EXPECT_TRUE(std::isnan(norm_of({1, kNan, 2})));
  }
}

struct AdamCase {
  bool decoupled;
  double weight_decay;
  Dtype gradient_type;
};

struct AdamState {
  AdamState(int64_t count, Dtype gradient_type, uint64_t seed)
      : random(seed),
        value(Dtype::kF32, random.normals(count), random.edge()),
        gradient(gradient_type, random.normals(count, 1e-3), random.edge()),
        average(Dtype::kF32, random.normals(count, 1e-4), random.edge()),
        square(Dtype::kF32, count, random.edge()) {
    for (int64_t i = 0; i < count; ++i) square.set(i, std::abs(1e-6 * random.normal()));
  }
  Adam args(const AdamCase& c) const {
    return {.count = value.size(),
            .value = static_cast<float*>(value.data()),
            .gradient = gradient.data(),
            .gradient_type = c.gradient_type,
            .average = static_cast<float*>(average.data()),
            .square = static_cast<float*>(square.data()),
            .learning_rate = 3e-4,
            .weight_decay = c.weight_decay,
            .correction1 = 1 - std::pow(0.9, 3),
            .correction2 = 1 - std::pow(0.999, 3),
            .decoupled = c.decoupled};
  }
  std::vector<std::vector<unsigned char>> bits() const { return {value.bits(), average.bits(), square.bits()}; }

  Random random;
  Numbers value, gradient, average, square;
};

constexpr AdamCase kAdamCases[] = {
    {true, 0.1, Dtype::kF32}, {true, 0.1, Dtype::kBf16}, {false, 0.1, Dtype::kF32}, {false, 0, Dtype::kBf16}};

TEST(AdamTest, StepsLikeThePaper) {
  for (const AdamCase& c : kAdamCases) {
    for (const int64_t count : {0, 1, 7, 16, 4100, 9001}) {
      at_every_level([&](Level level, int threads) {
        const AdamState state(count, c.gradient_type, count);
        const std::vector<double> value = state.value.values(), gradient = state.gradient.values(),
                                  average = state.average.values(), square = state.square.values();
        const float factor = 0.25F;
        Adam args = state.args(c);
        args.gradient_factor = &factor;
        args.threads = threads;
        ASSERT_TRUE(adam(level, args));
        for (int64_t i = 0; i < count; ++i) {
          const double g = gradient[i] * factor + (c.decoupled ? 0 : c.weight_decay * value[i]);
          const double m = average[i] + (1 - args.beta1) * (g - average[i]);
          const double v = args.beta2 * square[i] + (1 - args.beta2) * g * g;
          const double decayed = value[i] * (c.decoupled ? 1 - args.learning_rate * c.weight_decay : 1);
          const double step = args.learning_rate / args.correction1 * m / (std::sqrt(v / args.correction2) + args.eps);
          ASSERT_NEAR(state.average.get(i), m, 2e-7 * (std::abs(g) + std::abs(average[i])));
          ASSERT_NEAR(state.square.get(i), v, 5e-7 * v);
          ASSERT_NEAR(state.value.get(i), decayed - step, 2e-7 * std::abs(decayed) + 1e-6 * std::abs(step) + 1e-9);
        }
      });
    }
  }
}

TEST(AdamTest, HasTheSameBitsForAnySplit) {
  const int64_t count = 9001;
  for (const Level level : levels_here()) {
    for (const AdamCase& c : kAdamCases) {
      const AdamState whole(count, c.gradient_type, 3), cut(count, c.gradient_type, 3);
      ASSERT_TRUE(adam(level, whole.args(c)));
      Random random(5);
      for (int64_t first = 0; first < count;) {
        Adam part = cut.args(c);
        part.count = std::min(random.pick(1, 100), count - first);
        part.value += first, part.average += first, part.square += first;
        part.gradient = cut.gradient.at(first);
        ASSERT_TRUE(adam(level, part));
        first += part.count;
      }
      EXPECT_EQ(cut.bits(), whole.bits());
    }
  }
}

TEST(AdamTest, SkippedStepChangesNothing) {
  at_every_level([&](Level level, int threads) {
    const AdamState state(100, Dtype::kF32, 3);
    const auto before = state.bits();
    bool skip = true;
    Adam args = state.args(kAdamCases[0]);
    args.skip = &skip;
    args.threads = threads;
    ASSERT_TRUE(adam(level, args));
    EXPECT_EQ(state.bits(), before);
    skip = false;
    ASSERT_TRUE(adam(level, args));
    EXPECT_NE(state.bits(), before);
  });
}

}  // namespace
}  // namespace titan::kernels::testing
