#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/float8_kernels.h"

// Compares the results of a device's own kernels for bf16 numbers with LibTorch's operations: the same bits.
namespace titan::testing {

// Returns matrices of numbers of every magnitude: with ones that saturate or underflow, with a row and a column of
// zeros, and with sizes that are not multiples of a tile or of a vector, which the kernels decline.
inline std::vector<at::Tensor> float8_numbers() {
  at::manual_seed(17);
  std::vector<at::Tensor> all;
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {16, 8}, {128, 64}, {272, 200}, {3, 48, 136}, {64, 4104}, {40, 24}, {5, 70}, {16, 12}, {1, 8}, {2, 0, 8}}) {
    at::Tensor x = at::randn(shape) * at::exp2(at::randint(-30, 18, shape).to(at::kFloat));
    all.push_back(x.to(at::kBFloat16));
    if (x.dim() != 2 || x.size(0) < 16) continue;
    x = at::randn(shape);
    x[3].fill_(0);
    x.select(1, 5).fill_(0);
    all.push_back(x.to(at::kBFloat16));
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      at::Tensor spoilt = x.clone();
      spoilt[7][2] = -bad;
      all.push_back(spoilt.to(at::kBFloat16));
    }
  }
  return all;
}

// Returns all that a recipe computes from one operand x [..., rows, columns], on the CPU in fp64. The computation runs
// on x's device.
inline std::vector<at::Tensor> float8_of(const at::Tensor& x) {
  std::vector<at::Tensor> all;
  const auto add = [&](const nn::Operand& operand) {
    all.push_back(operand.values.cpu().to(at::kDouble));
    all.push_back(operand.scales.cpu().to(at::kDouble));
  };
  const at::Tensor amax = nn::amax_of(x);
  all.push_back(amax.cpu().to(at::kDouble));
  for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    for (const bool power_of_two : {false, true}) add(nn::quantised(x, amax, type, power_of_two));
    // One scale is far too small, as another rank's numbers may require, and one too large.
    for (const double factor : {1e4, 1e-3}) add(nn::quantised(x, amax * factor, type, /*power_of_two=*/false));
  }
  add(nn::quantised_rows(x));
  add(nn::quantised_columns(x));
  return all;
}

inline void expect_equal_float8(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs,
                                at::IntArrayRef shape) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].sizes(), theirs[i].sizes()) << i << " of " << shape;
    EXPECT_TRUE(ours[i].eq(theirs[i]).logical_or_(ours[i].isnan().logical_and(theirs[i].isnan())).all().item<bool>())
        << i << " of " << shape;
  }
}

// Returns the rows and columns of the groups of x [rows, columns] after padding: places and ends, then codes and scales
// of the groups' rows, and all padding between them.
inline std::vector<at::Tensor> float8_padded_groups(const at::Tensor& x, const std::vector<int32_t>& sizes) {
  const at::Tensor ends = at::tensor(sizes, at::kInt).cumsum(0).to(at::kInt);
  const int64_t own = ends[-1].item<int64_t>();
  const nn::RowGroups groups{.ends = ends.to(x.device())};
  const nn::PaddedGroups to = nn::pad_groups(groups, x);
  std::vector<at::Tensor> all = {to.places.cpu().to(at::kDouble), to.ends.cpu().to(at::kDouble)};
  const at::Tensor places = to.places.cpu().to(at::kLong).narrow(0, 0, own);
  const int64_t last = to.ends[-1].item<int64_t>();
  at::Tensor between = at::ones({last}, at::kBool);
  between.index_fill_(0, places, false);
  const nn::Operand rows = nn::quantise_padded_rows(x, to), columns = nn::quantise_padded_columns(x, to, groups);
  const at::Tensor values = rows.values.cpu().to(at::kDouble), turned = columns.values.cpu().to(at::kDouble);
  for (const at::Tensor& one : {values, turned.t()}) {
    all.push_back(one.index_select(0, places));
    all.push_back(one.narrow(0, 0, last).index({between}));
  }
  all.push_back(rows.scales.cpu().to(at::kDouble).index_select(0, places));
  all.push_back(columns.scales.cpu().to(at::kDouble));
  return all;
}

// Returns columns and group sizes: groups without rows, of multiples of sixteen and of any size, more rows than the
// groups have, and more groups than a tile has runs.
inline std::vector<std::pair<int64_t, std::vector<int32_t>>> float8_groups() {
  std::vector<std::pair<int64_t, std::vector<int32_t>>> all = {
      {8, {3, 0, 17, 16}}, {64, {0, 0, 0, 5}}, {264, {200, 1, 130, 0}}, {40, {16, 32}}, {136, {0}}, {12, {4, 9}}};
  all.emplace_back(24, std::vector<int32_t>(70, 2));
  return all;
}
// Draws bf16 rows [sum of sizes + of_no_group, columns].
inline at::Tensor float8_rows_of(int64_t columns, const std::vector<int32_t>& sizes, int64_t of_no_group) {
  int64_t rows = of_no_group;
  for (const int32_t size : sizes) rows += size;
  at::Tensor x = at::randn({rows, columns}) * at::exp2(at::randint(-6, 7, {rows, 1}).to(at::kFloat));
  return x.to(at::kBFloat16);
}

// Checks that every byte of a column-major matrix lands in the right place.
inline void check_turned_bytes(at::Device device) {
  at::manual_seed(18);
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{16, 8}, {128, 64}, {144, 72}, {1024, 200}, {16, 3000}, {24, 8}, {16, 12}}) {
    const at::Tensor bytes = at::randint(256, {rows, columns}, at::kByte);
    const at::Tensor lying = bytes.view(at::kFloat8_e5m2).to(device).t();
    const at::Tensor turned = nn::on_device::by_rows(lying);
    const bool takes = rows % 16 == 0 && columns % 8 == 0;
    ASSERT_EQ(turned.defined(), takes) << rows << " x " << columns;
    if (!takes) continue;
    EXPECT_TRUE(turned.is_contiguous());
    EXPECT_TRUE(turned.view(at::kByte).cpu().equal(bytes.t())) << rows << " x " << columns;
  }
}

}  // namespace titan::testing
