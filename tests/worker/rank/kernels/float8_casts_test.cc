// Compares loops over eight-bit values with the formats' definitions in fp64.
#include "worker/rank/kernels/cpu/float8_casts.h"

#include "tests/worker/rank/kernels/harness.h"

namespace titan::kernels::testing {
namespace {

// A format's non-negative numbers, by code; the codes after the last one are infinite or NaN.
struct Values {
  explicit Values(Float8Type format) {
    const int mantissa = format == Float8Type::kE4m3 ? 3 : 2, bias = format == Float8Type::kE4m3 ? 7 : 15;
    const int last = format == Float8Type::kE4m3 ? 0x7e : 0x7b, steps = 1 << mantissa;
    for (int code = 0; code <= last; ++code) {
      const int exponent = code >> mantissa;
      const double share = static_cast<double>(code % steps) / steps;
      magnitudes.push_back(exponent == 0 ? std::ldexp(share, 1 - bias) : std::ldexp(1 + share, exponent - bias));
    }
  }

  // Returns the nearest code: the even one of two equally near ones, and the largest for numbers beyond it.
  int nearest(double magnitude) const {
    if (magnitude >= magnitudes.back()) return static_cast<int>(magnitudes.size()) - 1;
    const auto above = std::upper_bound(magnitudes.begin(), magnitudes.end(), magnitude);
    const int low = static_cast<int>(above - magnitudes.begin()) - 1;
    const double to_low = magnitude - magnitudes[low], to_high = magnitudes[low + 1] - magnitude;
    return to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : low + 1;
  }
  int code_of(float x) const { return (std::isnan(x) ? 0x7f : nearest(std::abs(x))) | (std::signbit(x) ? 0x80 : 0); }
  double rounded(float x) const { return std::isnan(x) ? kNan : std::copysign(magnitudes[nearest(std::abs(x))], x); }

  std::vector<double> magnitudes;
};

// Returns numbers of all magnitudes, with infinities, zeros, denormals and, on request, NaNs.
std::vector<uint16_t> any_numbers(Random& random, int64_t count, bool with_nan = false) {
  constexpr uint16_t kSpecial[] = {0, 0x8000, 0x7f80, 0xff80, 1, 0x807f, 0x7f7f};
  std::vector<uint16_t> numbers(count);
  for (uint16_t& number : numbers) {
    number = to_bf16(static_cast<float>(std::ldexp(random.normal(), static_cast<int>(random.pick(-12, 12)))));
    if (random.pick(0, 19) == 0) number = kSpecial[random.pick(0, 6)];
    if (with_nan && random.pick(0, 199) == 0) number = 0x7fc1;
  }
  return numbers;
}

const Values& values_of(Float8Type format) {
  static const Values e4m3(Float8Type::kE4m3), e5m2(Float8Type::kE5m2);
  return format == Float8Type::kE4m3 ? e4m3 : e5m2;
}

TEST(Float8CastsTest, EveryNumberGetsTheNearestCode) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const Buffer<uint16_t> x(all);
  for (const Float8Type format : {Float8Type::kE4m3, Float8Type::kE5m2}) {
    const Values& values = values_of(format);
    for (const float scale : {1.0F, 0x1p-10F, 0x1p13F, 448.0F / 3.7F, 1e-12F}) {
      for (const int threads : {1, 2}) {
        const Buffer<uint8_t> codes(x.size());
        encode(format, x.data(), x.size(), scale, codes.data(), threads);
        for (int64_t i = 0; i < x.size(); ++i) {
          const float scaled = static_cast<float>(from_bf16(x[i])) * scale;
          ASSERT_EQ(codes[i], values.code_of(scaled)) << "bits " << i << ", scale " << scale;
        }
      }
    }
  }
}

// Lengths are around multiples of a vector and of a thread's part. Memory next to the buffers must stay untouched.
TEST(Float8CastsTest, EncodesAndDecodesEveryLength) {
  Random random(1);
  std::array<uint16_t, 256> table{};
  for (uint16_t& number : table) number = static_cast<uint16_t>(random.pick(0, 0xffff));
  std::vector<int64_t> lengths;
  for (int64_t length = 0; length <= 70; ++length) lengths.push_back(length);
  for (int64_t i = 0; i < 20; ++i) lengths.push_back(random.pick(1, 4) * (1 << 14) + random.pick(-40, 40));
  for (const int64_t length : lengths) {
    SCOPED_TRACE(length);
    const int threads = static_cast<int>(random.pick(1, 3));
    const Buffer<uint16_t> x(any_numbers(random, length, /*with_nan=*/true), random.edge());
    const Buffer<uint8_t> codes(length, random.edge());
    encode(Float8Type::kE4m3, x.data(), length, 4, codes.data(), threads);
    const Buffer<uint16_t> numbers(length, random.edge());
    decode(table, codes.data(), length, numbers.data(), threads);
    for (int64_t i = 0; i < length; ++i) {
      const float scaled = static_cast<float>(from_bf16(x[i])) * 4;
      ASSERT_EQ(codes[i], values_of(Float8Type::kE4m3).code_of(scaled)) << i;
      ASSERT_EQ(numbers[i], table[codes[i]]) << i;
    }
  }
}

// Returns shapes with few numbers, and shapes for more than one thread, cut by blocks and by columns.
std::vector<Blocks> shapes(Random& random) {
  std::vector<Blocks> all = {
      {.outer = 3, .size = 20000, .inner = 1, .block = 32}, {.outer = 2, .size = 33333, .inner = 1, .block = 33333},
      {.outer = 700, .size = 65, .inner = 1, .block = 32},  {.outer = 1, .size = 70, .inner = 1031, .block = 32},
      {.outer = 2, .size = 3, .inner = 20011, .block = 3},  {.outer = 1, .size = 0, .inner = 7, .block = 32},
      {.outer = 0, .size = 5, .inner = 1, .block = 2}};
  for (int i = 0; i < 200; ++i) {
    all.push_back({.outer = random.pick(1, 4),
                   .size = random.pick(0, 70),
                   .inner = random.pick(0, 2) == 0 ? 1 : random.pick(1, 40),
                   .block = random.pick(0, 1) == 0 ? 32 : random.pick(1, 80)});
  }
  return all;
}

int64_t numbers_in(const Blocks& blocks) { return blocks.outer * blocks.size * blocks.inner; }
int64_t blocks_in(const Blocks& blocks) { return blocks.outer * blocks.count() * blocks.inner; }

int64_t block_of(const Blocks& blocks, int64_t number) {
  const int64_t row = number / blocks.inner;
  return (row / blocks.size * blocks.count() + row % blocks.size / blocks.block) * blocks.inner + number % blocks.inner;
}

std::string named(const Blocks& blocks) {
  std::string text;
  for (const int64_t part : {blocks.outer, blocks.size, blocks.inner, blocks.block}) text += std::to_string(part) + " ";
  return text;
}

TEST(Float8CastsTest, GreatestMagnitudeOfEachBlock) {
  Random random(2);
  for (const Blocks& blocks : shapes(random)) {
    SCOPED_TRACE(named(blocks));
    const Buffer<uint16_t> x(any_numbers(random, numbers_in(blocks), /*with_nan=*/true), random.edge());
    const Buffer<uint16_t> amax(std::vector<uint16_t>(blocks_in(blocks)), random.edge());
    amax_of_blocks(blocks, x.data(), amax.data(), static_cast<int>(random.pick(1, 3)));
    std::vector<double> truth(amax.size()), found(amax.size());
    for (int64_t i = 0; i < x.size(); ++i) {
      double& block_max = truth[block_of(blocks, i)];
      const double magnitude = std::abs(from_bf16(x[i]));
      if (!(magnitude <= block_max) && !std::isnan(block_max)) block_max = magnitude;
    }
    for (int64_t i = 0; i < amax.size(); ++i) found[i] = from_bf16(amax[i]);
    ASSERT_TRUE(all_close(found, truth, 0, 0));
  }
}

TEST(Float8CastsTest, RoundsByTheScaleOfEachBlock) {
  Random random(3);
  for (const Blocks& blocks : shapes(random)) {
    SCOPED_TRACE(named(blocks));
    const Buffer<uint16_t> x(any_numbers(random, numbers_in(blocks), /*with_nan=*/true), random.edge());
    const Buffer<float> scale(blocks_in(blocks), random.edge()), inverse(blocks_in(blocks), random.edge());
    for (int64_t i = 0; i < scale.size(); ++i) {
      scale[i] = random.pick(0, 40) == 0 ? NAN : std::ldexp(1.0F, static_cast<int>(random.pick(-15, 15)));
      inverse[i] = 1 / scale[i];
    }
    const Buffer<uint16_t> rounded(x.size(), random.edge());
    round_by_blocks(blocks, x.data(), scale.data(), inverse.data(), rounded.data(),
                    static_cast<int>(random.pick(1, 3)));
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t block = block_of(blocks, i);
      const double in_float8 = values_of(Float8Type::kE4m3).rounded(static_cast<float>(from_bf16(x[i])) * scale[block]);
      const double truth = in_float8 * inverse[block], found = from_bf16(rounded[i]);
      ASSERT_TRUE(is_close(found, truth, 0, 0)) << i << ": " << found << ", truth " << truth;
      ASSERT_EQ(std::signbit(found), std::signbit(from_bf16(x[i]))) << i;  // The signs of zeros count, too.
    }
  }
}

}  // namespace
}  // namespace titan::kernels::testing
