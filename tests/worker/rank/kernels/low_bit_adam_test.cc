// Tests Adam with moments in fewer bits: the map of 8-bit codes, and the step.
#include "worker/rank/kernels/cpu/low_bit_adam.h"

#include "tests/worker/rank/kernels/simulated_kernels.h"
#include "worker/rank/random/random_math.h"

namespace titan::kernels::testing {
namespace {

using Form = KeptMoment::Form;

// Searches all codes for the one nearest to r; of two equally near ones, the one nearer to 0. In an unsigned map only 0
// is stored as 0.
int nearest_code(const DynamicMap& map, double r) {
  if (map.zero == 0 && r > 0 && r < map.values[1]) return 1;
  int best = map.zero;
  for (int code = 0; code < 256; ++code) {
    const double error = std::abs(map.values[code] - r), lowest = std::abs(map.values[best] - r);
    if (error < lowest || (error == lowest && std::abs(map.values[code]) < std::abs(map.values[best]))) best = code;
  }
  return best;
}

// Returns the largest error of r's code: half a step of its decade. Below the last decade it is r in a signed map, and
// the least number in an unsigned one.
double map_error(bool is_signed, double r) {
  r = std::abs(r);
  int steps = is_signed ? 64 : 128;
  for (int decade = 0; decade < 7; ++decade, steps /= 2) {
    if (r > std::pow(10.0, -decade - 1)) return std::pow(10.0, -decade) * 0.45 / steps;
  }
  return is_signed ? r : 3.25e-7;
}

TEST(DynamicMapTest, AscendsAndHasAtMostOneBoundInEachCell) {
  for (const bool is_signed : {false, true}) {
    const DynamicMap& map = dynamic_map(is_signed);
    EXPECT_EQ(map.values[map.zero], 0);
    EXPECT_EQ(map.values[255], 1);
    EXPECT_EQ(map.zero, is_signed ? 127 : 0);
    for (int code = 1; code < 256; ++code) EXPECT_LT(map.values[code - 1], map.values[code]);
    const int last = 255 - map.zero;
    for (int k = 0; k + 1 < last; ++k) {
      EXPECT_NE(bits_of(map.bounds[k]) >> 16, bits_of(map.bounds[k + 1]) >> 16) << "two bounds in a cell, step " << k;
    }
    for (int k = 1; is_signed && k < last; ++k) EXPECT_EQ(map.values[127 - k], -map.values[127 + k]);
    EXPECT_GT(bits_of(map.bounds[is_signed ? 0 : 1]) >> 16, static_cast<uint32_t>(DynamicMap::kFirstCell));
  }
}

// Moments of [rows, columns] in some form, with the numbers that they represent.
struct StoredMoments {
  StoredMoments(Form form, bool is_signed, int64_t rows, int64_t columns, int64_t first_column, Edge edge)
      : form(form),
        is_signed(is_signed),
        columns(columns),
        first(first_column % 256),
        blocks((first + columns + 255) / 256),
        bytes(rows * columns *
                  (form == Form::kCodes  ? 1
                   : form == Form::kBf16 ? 2
                                         : 4),
              edge),
        scales(form == Form::kCodes ? rows * blocks : 0, edge) {}

  KeptMoment moment() const {
    return {.numbers = bytes.data(), .scales = scales.data(), .map = &dynamic_map(is_signed)};
  }
  int64_t scale_of(int64_t i) const { return i / columns * blocks + (i % columns + first) / 256; }
  double get(int64_t i) const {
    switch (form) {
      case Form::kF32:
        return reinterpret_cast<const float*>(bytes.data())[i];
      case Form::kBf16:
        return from_bf16(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
      case Form::kCodes:
        break;
    }
    return dynamic_map(is_signed).values[bytes[i]] * scales[scale_of(i)];
  }
  void set(int64_t i, float x) const {
    if (form == Form::kF32) reinterpret_cast<float*>(bytes.data())[i] = x;
    if (form == Form::kBf16) reinterpret_cast<uint16_t*>(bytes.data())[i] = to_bf16(x);
  }
  // Draws codes and, over many magnitudes, scales. Numbers of an unsigned map have no sign.
  void draw(Random& random, double size) const {
    if (form != Form::kCodes) {
      const int64_t count = bytes.size() / (form == Form::kBf16 ? 2 : 4);
      for (int64_t i = 0; i < count; ++i) {
        const double x = size * random.normal();
        set(i, static_cast<float>(is_signed ? x : x * x));
      }
      return;
    }
    for (int64_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.pick(0, 255));
    for (int64_t i = 0; i < scales.size(); ++i) {
      const double x = size * random.normal();
      scales[i] = static_cast<float>(is_signed ? x : x * x);
    }
  }

  Form form;
  bool is_signed;
  int64_t columns, first, blocks;
  Buffer<uint8_t> bytes;
  Buffer<float> scales;
};

struct SmallCase {
  Form form = Form::kCodes;
  Dtype type = Dtype::kF32;
  int64_t rows = 1, columns = 256, first_column = 0;
  bool decoupled = true;
};

struct SmallState {
  SmallState(const SmallCase& c, uint64_t seed)
      : random(seed),
        value(c.type, random.normals(c.rows * c.columns), random.edge()),
        gradient(c.type, random.normals(c.rows * c.columns, 1e-3), random.edge()),
        average(c.form, /*is_signed=*/true, c.rows, c.columns, c.first_column, random.edge()),
        square(c.form, /*is_signed=*/false, c.rows, c.columns, c.first_column, random.edge()),
        args{.rows = c.rows,
             .columns = c.columns,
             .first_column = c.first_column,
             .value = value.data(),
             .gradient = gradient.data(),
             .type = c.type,
             .form = c.form,
             .average = average.moment(),
             .square = square.moment(),
             .learning_rate = 3e-4,
             .weight_decay = 0.1,
             .correction1 = 1 - std::pow(0.9, 3),
             .correction2 = 1 - std::pow(0.999, 3),
             .decoupled = c.decoupled,
             .gradient_factor = 0.25F} {
    average.draw(random, 1e-4);
    square.draw(random, 1e-3);
  }
  std::vector<std::vector<uint8_t>> moment_bits() const {
    const auto bytes_of = [](const Buffer<float>& scales) {
      const auto* first = reinterpret_cast<const uint8_t*>(scales.data());
      return std::vector<uint8_t>(first, first + scales.size() * sizeof(float));
    };
    return {average.bytes.copy(), bytes_of(average.scales), square.bytes.copy(), bytes_of(square.scales)};
  }

  Random random;
  Numbers value, gradient;
  StoredMoments average, square;
  LowBitAdam args;
};

std::vector<SmallCase> small_cases() {
  std::vector<SmallCase> cases;
  Random random(11);
  for (const Form form : {Form::kF32, Form::kBf16, Form::kCodes}) {
    for (const Dtype type : kBothTypes) {
      for (const auto& [rows, columns] :
           {std::pair<int64_t, int64_t>{0, 256}, {1, 1}, {3, 255}, {2, 256}, {2, 257}, {5, 700}}) {
        cases.push_back({form, type, rows, columns, random.pick(0, 3) * 100, random.pick(0, 1) == 0});
      }
      cases.push_back({form, type, random.pick(1, 9), random.pick(1, 1500), random.pick(0, 600), true});
      cases.push_back({form, type, 3, 712, 200, true});  // A device that has vectors of eight uses them here.
    }
  }
  return cases;
}

// Expects a moment after a step to equal `exact` within the error of fp32 arithmetic and that of the form.
void expect_stored(const StoredMoments& stored, int64_t i, double exact, double arithmetic) {
  double error = arithmetic;
  if (stored.form == Form::kBf16) error += std::abs(exact) / 256;
  if (stored.form == Form::kCodes) {
    const double scale = std::abs(stored.scales[stored.scale_of(i)]);
    error += scale == 0 ? 1e-37 : (1 + 1e-5) * scale * map_error(stored.is_signed, exact / scale);
  }
  ASSERT_NEAR(stored.get(i), exact, error) << i;
}

TEST(LowBitAdamTest, StepsLikeThePaperWithinTheFormatsError) {
  uint64_t seed = 0;
  for (const SmallCase& c : small_cases()) {
    ++seed;
    at_every_level([&](Level level, int threads) {
      const SmallState state(c, seed);
      const int64_t count = c.rows * c.columns;
      std::vector<double> average, square;
      for (int64_t i = 0; i < count; ++i) {
        average.push_back(state.average.get(i));
        square.push_back(state.square.get(i));
      }
      const std::vector<double> value = state.value.values(), gradient = state.gradient.values();
      LowBitAdam args = state.args;
      args.threads = threads;
      ASSERT_TRUE(low_bit_adam(level, args));
      for (int64_t i = 0; i < count; ++i) {
        const double g = gradient[i] * 0.25 + (c.decoupled ? 0 : args.weight_decay * value[i]);
        const double m = average[i] + (1 - args.beta1) * (g - average[i]);
        const double v = args.beta2 * square[i] + (1 - args.beta2) * g * g;
        const double base = value[i] * (c.decoupled ? 1 - args.learning_rate * args.weight_decay : 1);
        const double step = args.learning_rate / args.correction1 * m / (std::sqrt(v / args.correction2) + args.eps);
        expect_stored(state.average, i, m, 3e-7 * (std::abs(g) + std::abs(average[i])));
        expect_stored(state.square, i, v, 7e-7 * v);
        const double rounding = c.type == Dtype::kBf16 ? std::abs(base - step) / 256 : 0;
        ASSERT_NEAR(state.value.get(i), base - step, rounding + 3e-7 * std::abs(base) + 2e-6 * std::abs(step) + 1e-9);
      }
    });
  }
}

// A device's body, run on the host, gives the same bits.
TEST(LowBitAdamTest, DeviceBodyGivesTheSameBits) {
  const SimulatedKernels device;
  uint64_t seed = 20;
  for (const SmallCase& c : small_cases()) {
    ++seed;
    for (const Level level : levels_here()) {
      const SmallState ours(c, seed), theirs(c, seed);
      LowBitAdam args = theirs.args;
      args.stochastic = c.type == Dtype::kBf16 && seed % 2 == 0;
      args.random_key = 0x123456789abcdef;
      args.random_step = 3;
      args.first_index = 999;
      args.index_stride = c.columns + 5;
      ASSERT_TRUE(low_bit_adam(level, args));
      args.value = ours.args.value, args.gradient = ours.args.gradient;
      args.average = ours.args.average, args.square = ours.args.square;
      const float step = 3, divisor = 4, closed = 1, open = 0;
      float scratch[kLowBitAdamScratch];
      const auto before = ours.moment_bits();
      ASSERT_TRUE(device.run(args, {.step = &step, .divisor = &divisor, .skip = &closed, .scratch = scratch}));
      ASSERT_EQ(ours.moment_bits(), before) << "a step that is skipped";
      ASSERT_TRUE(device.run(args, {.step = &step, .divisor = &divisor, .skip = &open, .scratch = scratch}));
      ASSERT_EQ(ours.value.bits(), theirs.value.bits()) << "seed " << seed;
      ASSERT_EQ(ours.moment_bits(), theirs.moment_bits()) << "seed " << seed;
    }
  }
}

// Each code is the nearest one, and the number of largest magnitude in a block is stored exactly.
TEST(LowBitAdamTest, TakesTheNearestCode) {
  at_every_level([&](Level level, int threads) {
    const SmallCase c{.rows = 40, .columns = 300};
    SmallState state(c, 4);
    // With these factors the moments become g and g * g, whatever they were.
    for (int64_t i = 0; i < 12000; ++i) {
      state.gradient.set(i, state.random.normal() * std::pow(10.0, -state.random.pick(0, 7)));
    }
    state.args.beta1 = state.args.beta2 = 0;
    state.args.gradient_factor = 1;
    state.args.threads = threads;
    ASSERT_TRUE(low_bit_adam(level, state.args));
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t begin = 0; begin < c.columns; begin += 256) {
        const int64_t first = row * c.columns + begin, last = row * c.columns + std::min<int64_t>(begin + 256, 300);
        float extreme = 0;
        for (int64_t i = first; i < last; ++i) {
          const auto g = static_cast<float>(state.gradient.get(i));
          if (std::abs(g) > std::abs(extreme)) extreme = g;
        }
        ASSERT_EQ(state.average.scales[state.average.scale_of(first)], extreme);
        ASSERT_EQ(state.square.scales[state.square.scale_of(first)], extreme * extreme);
        for (int64_t i = first; i < last; ++i) {
          const auto g = static_cast<float>(state.gradient.get(i));
          ASSERT_EQ(state.average.bytes[i], nearest_code(dynamic_map(true), g / extreme)) << i;
          ASSERT_EQ(state.square.bytes[i], nearest_code(dynamic_map(false), (g * g) / (extreme * extreme))) << i;
          if (g == extreme) {
            ASSERT_EQ(state.average.get(i), g);
          }
        }
      }
    }
  });
}

// Decoded numbers encode to the same codes. So a step that leaves the moments as they are changes none of their bits,
// and the saved numbers are the whole state.
TEST(LowBitAdamTest, DecodedCodesEncodeToThemselves) {
  for (const SmallCase& c : small_cases()) {
    at_every_level([&](Level level, int threads) {
      SmallState state(c, 8);
      state.args.threads = threads;
      ASSERT_TRUE(low_bit_adam(level, state.args));
      const auto before = state.moment_bits();
      LowBitAdam still = state.args;
      still.beta1 = still.beta2 = 1;  // The moments stay as they are, whatever the gradient is.
      ASSERT_TRUE(low_bit_adam(level, still));
      EXPECT_EQ(state.moment_bits(), before);
    });
  }
}

TEST(LowBitAdamTest, HasTheSameBitsForAnySplit) {
  for (const SmallCase& c : small_cases()) {
    if (c.rows == 0) continue;
    for (const Level level : levels_here()) {
      SmallState whole(c, 5), by_rows(c, 5), by_columns({c.form, c.type, 1, c.columns, c.first_column, c.decoupled}, 5);
      for (SmallState* one : {&whole, &by_rows, &by_columns}) {
        one->args.stochastic = c.type == Dtype::kBf16;
        one->args.random_key = 0x123456789abcdef;
        one->args.random_step = 7;
        one->args.first_index = 1000;
        one->args.index_stride = c.columns + 3;
      }
      ASSERT_TRUE(low_bit_adam(level, whole.args));
      LowBitAdam part = by_rows.args;
      part.rows = 1;
      const int64_t size = c.form == Form::kCodes ? 1 : c.form == Form::kBf16 ? 2 : 4;
      for (int64_t row = 0; row < c.rows; ++row) {
        const int64_t i = row * c.columns, scale = c.form == Form::kCodes ? row * by_rows.average.blocks : 0;
        part.value = by_rows.value.at(i), part.gradient = by_rows.gradient.at(i);
        part.first_index = 1000 + row * (c.columns + 3);
        part.average.numbers = by_rows.average.bytes.data() + i * size;
        part.square.numbers = by_rows.square.bytes.data() + i * size;
        part.average.scales = by_rows.average.scales.data() + scale;
        part.square.scales = by_rows.square.scales.data() + scale;
        ASSERT_TRUE(low_bit_adam(level, part));
      }
      EXPECT_EQ(by_rows.value.bits(), whole.value.bits());
      EXPECT_EQ(by_rows.moment_bits(), whole.moment_bits());

      SmallState row({c.form, c.type, 1, c.columns, c.first_column, c.decoupled}, 5);
      row.args.stochastic = by_columns.args.stochastic, row.args.random_key = by_columns.args.random_key;
      row.args.random_step = 7, row.args.first_index = 1000;
      ASSERT_TRUE(low_bit_adam(level, row.args));
      int64_t block = 0;
      for (int64_t begin = 0; begin < c.columns; ++block) {
        const int64_t end = std::min(c.columns, (begin + c.first_column) / 256 * 256 + 256 - c.first_column);
        part = by_columns.args;
        part.columns = end - begin, part.first_column = c.first_column + begin;
        part.first_index = 1000 + begin;
        part.value = by_columns.value.at(begin), part.gradient = by_columns.gradient.at(begin);
        part.average.numbers = by_columns.average.bytes.data() + begin * size;
        part.square.numbers = by_columns.square.bytes.data() + begin * size;
        if (c.form == Form::kCodes) part.average.scales += block, part.square.scales += block;
        ASSERT_TRUE(low_bit_adam(level, part));
        begin = end;
      }
      EXPECT_EQ(by_columns.value.bits(), row.value.bits());
      EXPECT_EQ(by_columns.moment_bits(), row.moment_bits());
    }
  }
}

// Zeros stay zeros, numbers too small for fp32 become zeros, and a non-finite gradient affects its whole block and no
// other one.
TEST(LowBitAdamTest, SpecialNumbersStayInTheirBlock) {
  at_every_level([&](Level level, int threads) {
    SmallState state({.rows = 4, .columns = 256}, 2);
    state.args.threads = threads;
    state.args.weight_decay = 0;
    for (int64_t i = 0; i < 256; ++i) {
      for (const int64_t row : {0, 1}) {
        state.gradient.set(row * 256 + i, row == 0 ? 0 : 1e-41);
        state.average.bytes[row * 256 + i] = 127;
        state.square.bytes[row * 256 + i] = 0;
      }
    }
    state.gradient.set(2 * 256 + 17, kInfinity);
    state.gradient.set(3 * 256, 1e-30);  // Next to gradients of 1e-3 this number is lost, and no other.
    const std::vector<double> before = state.value.values();
    ASSERT_TRUE(low_bit_adam(level, state.args));
    for (int64_t i = 0; i < 512; ++i) {
      EXPECT_EQ(state.average.get(i), 0);
      EXPECT_EQ(state.square.get(i), 0);
      EXPECT_EQ(state.value.get(i), before[i]);
    }
    for (int64_t i = 512; i < 768; ++i) {
      EXPECT_TRUE(std::isnan(state.average.get(i)) && std::isnan(state.square.get(i)));
      EXPECT_EQ(std::isfinite(state.value.get(i)), i != 512 + 17);  // The update uses unencoded numbers.
    }
    for (int64_t i = 768; i < 1024; ++i) {
      EXPECT_TRUE(std::isfinite(state.average.get(i)) && std::isfinite(state.square.get(i)));
    }
  });
}

// Computes word `index` of a stream directly.
uint32_t word_of(uint64_t key, uint32_t step, int64_t index) {
  const uint64_t counter = static_cast<uint64_t>(index / 64) * 16 + static_cast<uint64_t>(index % 16);
  uint32_t word[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), step, 0};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    random::philox_round(word, k0, k1);
    k0 += random::kPhiloxKey0;
    k1 += random::kPhiloxKey1;
  }
  return word[index % 64 / 16];
}

// Stochastic rounding goes to the upper neighbour with a probability proportional to the distance, by the random words
// that the header names.
TEST(LowBitAdamTest, StochasticRoundingIsUnbiased) {
  at_every_level([&](Level level, int threads) {
    for (const double share : {0.0, 0.01, 0.25, 0.5, 0.9}) {
      SmallCase c{.form = Form::kBf16, .type = Dtype::kBf16, .rows = 60, .columns = 1003};
      SmallState state(c, 6);
      const int64_t count = c.rows * c.columns;
      for (int64_t i = 0; i < count; ++i) {
        state.value.set(i, i % 2 == 0 ? 1 : -4);
        state.gradient.set(i, 0);
        state.average.set(i, 0);
      }
      // The step moves 1 down by `share` of the distance to the next bf16 number, which is 2^-8 below 1.
      state.args.learning_rate = share / 256;
      state.args.weight_decay = 1;
      const float shrunk = static_cast<float>(1 - share / 256);
      state.args.threads = threads;
      state.args.stochastic = true;
      state.args.random_key = 0xfedcba9876543210;
      state.args.random_step = 12;
      state.args.first_index = 77;
      state.args.index_stride = 2000;
      ASSERT_TRUE(low_bit_adam(level, state.args));
      int64_t below = 0;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t index = 77 + i / c.columns * 2000 + i % c.columns;
        const uint32_t word = word_of(0xfedcba9876543210, 12, index);
        const float exact = i % 2 == 0 ? shrunk : -4 * shrunk;
        const uint32_t want = (bits_of(exact) + (word >> 16)) & 0xffff0000;
        ASSERT_EQ(bits_of(static_cast<float>(state.value.get(i))), want) << i;
        below += std::abs(state.value.get(i)) < (i % 2 == 0 ? 1 : 4);
      }
      const double mean = static_cast<double>(count) * share;
      EXPECT_NEAR(static_cast<double>(below), mean, 4 * std::sqrt(mean * (1 - share)) + 1e-9) << share;
    }
  });
}

TEST(LowBitAdamTest, StochasticRoundingKeepsNonFiniteValues) {
  at_every_level([&](Level level, int threads) {
    SmallState state({.form = Form::kF32, .type = Dtype::kBf16, .rows = 1, .columns = 40}, 6);
    for (int64_t i = 0; i < 40; ++i) state.value.set(i, i % 2 == 0 ? kInfinity : kNan);
    state.args.stochastic = true;
    state.args.threads = threads;
    ASSERT_TRUE(low_bit_adam(level, state.args));
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_FALSE(std::isfinite(state.value.get(i))) << i;
    }
    state.args.type = Dtype::kF32;
    EXPECT_FALSE(low_bit_adam(level, state.args));
  });
}

}  // namespace
}  // namespace titan::kernels::testing
