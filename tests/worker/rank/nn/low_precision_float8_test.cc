#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/worker/rank/kernels/simulated_kernels.h"
#include "tests/worker/rank/nn/float8_cases.h"
#include "tests/worker/rank/nn/plain_float8.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/mxfp8.h"

// Compares eight-bit floats with dynamic scales with their definitions in fp64.
namespace titan::nn {
namespace {

using titan::testing::kE4m3;
using titan::testing::kE5m2;

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor numbers_of(const Operand& operand) { return dequantised(operand, at::kDouble); }

bool all_nan(const at::Tensor& x) { return x.isnan().all().item<bool>(); }

TEST(Float8Test, ValuesAreTheNearestOfTheFormat) {
  at::manual_seed(1);
  // Numbers reach from far below the least one to beyond the largest one, and include every midpoint of two neighbours.
  const at::Tensor wide = at::randn({4000}) * at::exp2(at::randint(-20, 18, {4000}).to(at::kFloat));
  const at::Tensor halves = at::arange(-896, 897).to(at::kFloat) / 2;
  const at::Tensor x = at::cat({wide, halves, halves / 1024}), one = at::ones({});
  const at::Tensor e4m3 = to_float8(x, one, at::kFloat8_e4m3fn), e5m2 = to_float8(x, one, at::kFloat8_e5m2);
  EXPECT_TRUE(e4m3.to(at::kDouble).equal(titan::testing::nearest(x.to(at::kDouble), kE4m3)));
  EXPECT_TRUE(e5m2.to(at::kDouble).equal(titan::testing::nearest(x.to(at::kDouble), kE5m2)));
}

TEST(Float8Test, GreatestNumbersBecomeTheFormatsLargest) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor x = (at::randn({5, 7}) * 3e-3).to(type);
    const Operand operand = quantised(x, amax_of(x), at::kFloat8_e5m2, /*power_of_two=*/false);
    EXPECT_EQ(operand.values.to(at::kFloat).abs().max().item<float>(), 57344) << type;
    EXPECT_EQ(operand.scales.scalar_type(), at::kFloat);
    EXPECT_EQ(operand.scales.dim(), 0);
    EXPECT_EQ(operand.type, type);
    EXPECT_TRUE(numbers_of(operand).allclose(titan::testing::plain_tensorwise(x, kE5m2), 0, 1e-15)) << type;
    // Three bits of significand: the error is an eighth of a number, or of the least normal one.
    EXPECT_TRUE(numbers_of(operand).allclose(x.to(at::kDouble), 1.0 / 8, 1e-9)) << type;
  }
}

TEST(Float8Test, RowsAndColumnsHavePowersOfTwo) {
  at::manual_seed(3);
  const at::Tensor x =
      (at::randn({6, 9}) * at::exp2(at::arange(6).to(at::kFloat) * 5 - 12).unsqueeze(1)).to(at::kBFloat16);
  for (const int64_t dim : {-1, -2}) {
    const at::Tensor amax = amax_along(x, dim);
    EXPECT_TRUE(amax.equal(x.to(at::kFloat).abs().amax(dim, /*keepdim=*/true)));
    const Operand operand = quantised(x, amax, at::kFloat8_e4m3fn, /*power_of_two=*/true);
    EXPECT_TRUE(std::get<0>(at::frexp(operand.scales)).eq(0.5).all().item<bool>()) << "powers of two";
    const at::Tensor largest = operand.values.to(at::kFloat).abs().amax(dim);
    EXPECT_TRUE(largest.gt(448 / 2 - 16).logical_and(largest.le(448)).all().item<bool>()) << largest;
    EXPECT_TRUE(numbers_of(operand).equal(titan::testing::plain_along(x, dim)));
    EXPECT_TRUE(rounded_along(x, dim).to(at::kDouble).equal(titan::testing::plain_along(x, dim))) << "exact in bf16";
  }
}

TEST(Float8Test, ValuesOutOfRangeSaturate) {
  const at::Tensor x = at::tensor({1.0F, -3.0F, 1e30F, -2e30F, 0.0F}), small = at::full({}, 400.0F);
  const at::Tensor values = to_float8(x, small, at::kFloat8_e4m3fn).to(at::kFloat);
  EXPECT_TRUE(values.equal(at::tensor({384.0F, -448.0F, 448.0F, -448.0F, 0.0F}))) << values;
}

TEST(Float8Test, ZerosAndEmptyTensorsHaveScales) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 4}, {0, 4}, {3, 0}, {1, 4}}) {
    const at::Tensor x = at::zeros(shape, at::kBFloat16);
    for (const at::Tensor& amax : {amax_of(x), amax_along(x, -1), amax_along(x, -2)}) {
      const Operand operand = quantised(x, amax, at::kFloat8_e4m3fn, /*power_of_two=*/false);
      EXPECT_TRUE(operand.scales.eq(static_cast<float>(1e-12 / 448)).all().item<bool>()) << operand.scales;
      EXPECT_TRUE(numbers_of(operand).equal(at::zeros(shape, at::kDouble)));
    }
  }
}

TEST(Float8Test, NansAndInfinitiesPropagate) {
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    at::Tensor x = at::ones({3, 4});
    x[1][2] = bad;
    const auto numbers = [&](const at::Tensor& amax) {
      return numbers_of(quantised(x, amax, at::kFloat8_e4m3fn, /*power_of_two=*/true));
    };
    EXPECT_TRUE(all_nan(numbers(amax_of(x)))) << bad;
    const at::Tensor rows = numbers(amax_along(x, -1)), columns = numbers(amax_along(x, -2));
    EXPECT_TRUE(all_nan(rows[1])) << bad;
    EXPECT_TRUE(rows[0].equal(at::ones({4}, at::kDouble))) << "other rows are as they were";
    EXPECT_TRUE(all_nan(columns.select(1, 2))) << bad;
    EXPECT_TRUE(columns.select(1, 3).equal(at::ones({3}, at::kDouble))) << "other columns are as they were";
  }
}

// In one case the host knows the row counts of the groups, in the other only the device does.
TEST(Float8Test, ColumnsOfEachGroupHaveTheirScales) {
  at::manual_seed(4);
  const std::vector<int64_t> rows = {3, 0, 5, 1};
  const at::Tensor x = (at::randn({11, 6}) * at::exp2(at::arange(11).to(at::kFloat)).unsqueeze(1)).to(at::kBFloat16);
  const at::Tensor ends = at::tensor(rows).cumsum(0).to(at::kInt);
  const at::Tensor beyond = at::arange(11).ge(9).unsqueeze(1);
  const RowGroups by_host{.rows = rows}, by_device{.ends = ends, .beyond = beyond};
  at::Tensor expected = at::zeros({11, 6}, at::kDouble);
  for_each_group(rows, [&](int64_t, int64_t first, int64_t count) {
    if (count == 0) return;
    expected.narrow(0, first, count).copy_(titan::testing::plain_along(x.narrow(0, first, count), 0));
  });
  EXPECT_TRUE(rounded_group_columns(x, by_host).to(at::kDouble).equal(expected));
  EXPECT_TRUE(rounded_group_columns(x, by_device).to(at::kDouble).equal(expected));
  EXPECT_TRUE(group_of_rows(by_host, 11, x).equal(group_of_rows(by_device, 11, x)));
  EXPECT_EQ(quantised_group_columns(x, by_device).scales.sizes(), at::IntArrayRef({4, 6}));
}

// Compares the bodies of a GPU's kernels, run on the host, with LibTorch's operations.
TEST(Float8Test, DeviceKernelsHaveTheSameBits) {
  const kernels::testing::SimulatedKernels on_host;
  kernels::choose("reference");
  for (const at::Tensor& x : titan::testing::float8_numbers()) {
    const std::vector<at::Tensor> theirs = titan::testing::float8_of(x);
    kernels::choose_on_device(&on_host, {.model = true});
    EXPECT_EQ(on_device::quantised_rows(x).quantised(), x.numel() > 0 && x.size(-1) % 8 == 0);
    titan::testing::expect_equal_float8(titan::testing::float8_of(x), theirs, x.sizes());
    kernels::choose_on_device(nullptr, {});
  }
  kernels::choose("auto");
}

TEST(Float8Test, DeviceKernelsPadGroups) {
  const kernels::testing::SimulatedKernels on_host;
  at::manual_seed(21);
  kernels::choose("reference");
  for (const auto& [columns, sizes] : titan::testing::float8_groups()) {
    for (const int64_t of_no_group : {0, 9}) {
      const at::Tensor x = titan::testing::float8_rows_of(columns, sizes, of_no_group);
      if (x.numel() == 0) continue;
      const std::vector<at::Tensor> theirs = titan::testing::float8_padded_groups(x, sizes);
      kernels::choose_on_device(&on_host, {.model = true});
      const PaddedGroups to = pad_groups({.ends = at::tensor(sizes, at::kInt).cumsum(0).to(at::kInt)}, x);
      EXPECT_TRUE(to.source.defined());
      EXPECT_EQ(on_device::quantise_padded_columns(x, to, static_cast<int64_t>(sizes.size())).quantised(),
                columns % 8 == 0);
      titan::testing::expect_equal_float8(titan::testing::float8_padded_groups(x, sizes), theirs, x.sizes());
      kernels::choose_on_device(nullptr, {});
    }
  }
  kernels::choose("auto");
}

TEST(Float8Test, DeviceKernelsTransposeBytes) {
  const kernels::testing::SimulatedKernels on_host;
  kernels::choose_on_device(&on_host, {.model = true});
  titan::testing::check_turned_bytes(at::kCPU);
  kernels::choose_on_device(nullptr, {});
}

// Titan's CPU loops make one pass over the numbers, and have the bits of LibTorch's seven operations.
TEST(Float8Test, TitansLoopsHaveTheSameBits) {
  at::manual_seed(5);
  const auto computed = [](const at::Tensor& x) {
    std::vector<at::Tensor> all;
    for (const int64_t dim : {-1, -2}) {
      all.push_back(rounded_along(x, dim));
      for (const MxRounding rounding : {MxRounding::kFloor, MxRounding::kRceil, MxRounding::kCeil, MxRounding::kEven}) {
        all.push_back(mx_rounded(x, dim, rounding));
      }
    }
    for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      // Scales reach from saturation to underflow.
      for (const float scale : {1.0F, 3.7e3F, 1e-3F, 7.0F}) {
        const Operand operand{to_float8(x, at::full({}, scale), type), at::ones({})};
        all.push_back(operand.values.view(at::kByte));
        all.push_back(values_in(operand, at::kBFloat16));
      }
    }
    return all;
  };
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{5, 70}, {64, 33}, {3, 40, 7}, {2, 96, 65}, {1, 1}, {0, 8}}) {
    at::Tensor x = at::randn(shape) * at::exp2(at::randint(-24, 16, shape).to(at::kFloat));
    if (x.numel() > 100) x.flatten()[50] = 0;
    x = x.to(at::kBFloat16);
    kernels::choose("reference");
    const std::vector<at::Tensor> theirs = computed(x);
    kernels::choose("auto");
    const std::vector<at::Tensor> ours = computed(x);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(theirs[i])) << i << " of " << x.sizes();
    for (const double bad : {kNan, kInfinity}) {
      if (x.numel() == 0) continue;
      at::Tensor with = x.clone();
      with.flatten()[0] = bad;
      for (const int64_t dim : {-1, -2}) {
        kernels::choose("reference");
        const at::Tensor expected = rounded_along(with, dim), blocks = mx_rounded(with, dim, MxRounding::kRceil);
        kernels::choose("auto");
        EXPECT_TRUE(rounded_along(with, dim).allclose(expected, 0, 0, /*equal_nan=*/true)) << bad;
        EXPECT_TRUE(mx_rounded(with, dim, MxRounding::kRceil).allclose(blocks, 0, 0, /*equal_nan=*/true)) << bad;
      }
    }
  }
  kernels::choose("reference");
}

TEST(Float8Test, OtherTypesAreRefused) { EXPECT_THROW(largest_of(at::kBFloat16), c10::Error); }

}  // namespace
}  // namespace titan::nn
