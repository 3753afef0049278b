#include <gtest/gtest.h>

#include <limits>

#include "tests/worker/rank/nn/plain_float8.h"
#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/mxfp8.h"
#include "worker/rank/nn/low_precision/scaled_mm.h"

// Compares blocks of 32 numbers with one exponent each with their definition in fp64.
namespace titan::nn {
namespace {

constexpr MxRounding kRoundings[] = {MxRounding::kFloor, MxRounding::kRceil, MxRounding::kCeil, MxRounding::kEven};

int exponent_of(float amax, MxRounding rounding) {
  return mx_exponents(at::tensor({amax}), rounding).item<int>() - 127;
}

TEST(MxTest, ExponentsFollowTheRounding) {
  at::manual_seed(1);
  const at::Tensor amax = at::rand({2000}).add(0.01) * at::exp2(at::randint(-60, 60, {2000}).to(at::kFloat));
  for (const MxRounding rounding : kRoundings) {
    const at::Tensor expected = titan::testing::plain_mx_exponent(amax, rounding);
    EXPECT_TRUE((mx_exponents(amax, rounding).to(at::kDouble) - 127).equal(expected)) << static_cast<int>(rounding);
  }
}

// The modes differ around the powers of two.
TEST(MxTest, RoundingModesDifferWhereExpected) {
  struct Case {
    float amax;
    int floor, rceil, ceil, even;
  };
  for (const Case& c : {Case{256, 0, 0, 0, 0},
                        {448, 0, 0, 1, 0},
                        {449, 0, 1, 1, 0},
                        {479, 0, 1, 1, 0},
                        {496, 0, 1, 1, 1},
                        {511, 0, 1, 1, 1},
                        {512, 1, 1, 1, 1},
                        {257, 0, 0, 1, 0}}) {
    EXPECT_EQ(exponent_of(c.amax, MxRounding::kFloor), c.floor) << c.amax;
    EXPECT_EQ(exponent_of(c.amax, MxRounding::kRceil), c.rceil) << c.amax;
    EXPECT_EQ(exponent_of(c.amax, MxRounding::kCeil), c.ceil) << c.amax;
    EXPECT_EQ(exponent_of(c.amax, MxRounding::kEven), c.even) << c.amax;
  }
}

TEST(MxTest, NumbersAreRoundedByBlock) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    // Sizes have only whole blocks, a shorter last one, and not even one whole block.
    for (const int64_t size : {96, 70, 13}) {
      const at::Tensor x = (at::randn({3, size, 4}) * at::exp2(at::arange(size) % 40 - 20).view({1, size, 1})).to(type);
      for (const MxRounding rounding : kRoundings) {
        const at::Tensor expected = titan::testing::plain_mx(x, 1, rounding);
        EXPECT_TRUE(mx_rounded(x, 1, rounding).to(at::kDouble).equal(expected)) << type << " " << size;
        EXPECT_TRUE(mx_rounded(x, -2, rounding).equal(mx_rounded(x, 1, rounding)));
        EXPECT_EQ(mx_rounded(x, 1, rounding).scalar_type(), type);
      }
    }
  }
}

TEST(MxTest, OperandsArePaddedToWholeBlocks) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({5, 70}).to(at::kBFloat16);
  const Operand operand = to_mx(x, MxRounding::kRceil);
  EXPECT_EQ(operand.values.sizes(), at::IntArrayRef({5, 96}));
  EXPECT_EQ(operand.values.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(operand.scales.sizes(), at::IntArrayRef({5, 3}));
  EXPECT_EQ(operand.scales.scalar_type(), at::kFloat8_e8m0fnu);
  const at::Tensor blocks = operand.values.to(at::kDouble).view({5, 3, 32});
  const at::Tensor numbers = (blocks * operand.scales.to(at::kDouble).unsqueeze(-1)).view({5, 96});
  EXPECT_TRUE(numbers.narrow(1, 0, 70).equal(titan::testing::plain_mx(x, 1, MxRounding::kRceil)));
  EXPECT_EQ(numbers.narrow(1, 70, 26).abs().max().item<double>(), 0);
}

TEST(MxTest, ZerosNansAndInfinities) {
  for (const MxRounding rounding : kRoundings) {
    at::Tensor x = at::zeros({1, 96});
    x[0][40] = std::numeric_limits<float>::quiet_NaN();
    x[0][70] = std::numeric_limits<float>::infinity();
    const at::Tensor rounded = mx_rounded(x, 1, rounding);
    EXPECT_EQ(rounded.narrow(1, 0, 32).abs().max().item<float>(), 0);
    EXPECT_TRUE(rounded.narrow(1, 32, 32).isnan().all().item<bool>()) << "a block with a NaN becomes NaN";
    EXPECT_FALSE(rounded.narrow(1, 64, 32).isfinite().all().item<bool>());
    EXPECT_EQ(mx_exponents(at::tensor({std::numeric_limits<float>::quiet_NaN()}), rounding).item<int>(), 255);
  }
}

// Row r and block c of a tile are at byte 16 (r % 32) + 4 (r / 32) + c.
TEST(MxTest, DevicesReadExponentsInTiles) {
  const int64_t rows = 150, blocks = 6;
  const at::Tensor exponents = at::randint(1, 255, {rows, blocks}).to(at::kByte);
  const at::Tensor tiles = mx_tiles(exponents.view(at::kFloat8_e8m0fnu)).view(at::kByte);
  ASSERT_EQ(tiles.numel(), 256 * 8);
  at::Tensor expected = at::zeros({256 * 8}, at::kByte);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < blocks; ++c) {
      const int64_t tile = r / 128 * 2 + c / 4, in_tile = r % 128;
      expected[tile * 512 + in_tile % 32 * 16 + in_tile / 32 * 4 + c % 4] = exponents[r][c];
    }
  }
  EXPECT_TRUE(tiles.equal(expected));
}

}  // namespace
}  // namespace titan::nn
