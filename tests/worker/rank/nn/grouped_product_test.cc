#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tests/testing/call_counter.h"
#include "tests/testing/draw.h"
#include "tests/worker/rank/nn/bf16_oracle.h"
#include "tests/worker/rank/nn/grouped_cases.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/nn/matmul_autograd.h"

// Compares experts' products with biases, in one call for all experts and in one for each, with fp64.
namespace titan::nn {
namespace {

using titan::testing::expect_rounded;

struct Computed {
  at::Tensor y, dx, dw, db;
};

Computed computed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& dy,
                  double factor, const RowGroups& groups) {
  Parameter matrix{"w", weight.sizes().vec(), {}, {}}, addend{"b", bias.sizes().vec(), {}, {}};
  matrix.weight = weight.detach().clone().requires_grad_();
  addend.weight = bias.detach().clone().requires_grad_();
  const at::Tensor input = x.detach().clone().requires_grad_();
  const at::Tensor y = grouped_product(input, matrix, &addend, factor, groups);
  const auto gradients = torch::autograd::grad({y}, {input, matrix.weight, addend.weight}, {dy});
  return {y.detach(), gradients[0], gradients[1], gradients[2]};
}

at::Tensor draw(const std::vector<int64_t>& shape) { return at::randn(shape).to(at::kBFloat16); }

TEST(GroupedProductTest, BiasedProductsEqualThoseOfEachGroup) {
  titan::testing::Draw pick(11);
  titan::testing::for_each_grouped_case(11, [&](const titan::testing::GroupedCase& c) {
    const double factor = pick({1, 2}) / 2.0;
    const at::Tensor x = draw({c.total(), c.in}), w = draw({c.groups(), c.out, c.in}), b = draw({c.groups(), c.out}),
                     dy = draw({c.total(), c.out});
    const Computed got = computed(x, w, b, dy, factor, c.groups_of(x, /*with_members=*/true));
    for_each_group(c.rows, [&](int64_t group, int64_t first, int64_t some) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, some); };
      const auto exact = [&](const at::Tensor& t) { return part(t).to(at::kDouble); };
      const std::string what = c.name(group);
      const at::Tensor weight = w[group].to(at::kDouble);
      const at::Tensor product = at::matmul(exact(x), weight.t()), addend = b[group].to(at::kDouble) * factor;
      expect_rounded(part(got.y), product + addend, product.abs() + addend.abs(), 2, what);
      expect_rounded(part(got.dx), at::matmul(exact(dy), weight), what);
      expect_rounded(got.dw[group], at::matmul(exact(dy).t(), exact(x)), what);
      expect_rounded(got.db[group], exact(dy).sum(0), what);
    });
  });
}

// A buffer may have space for more rows than came. Their content, even NaN, changes nothing, and their results are
// zeros, whether the host knows the rows of each group or only the device.
TEST(GroupedProductTest, RowsOutsideOfGroupsHaveNoEffect) {
  titan::testing::for_each_grouped_case(12, [&](const titan::testing::GroupedCase& c) {
    if (!c.one_call) return;
    constexpr int64_t kPadding = 5;
    const auto with_padding = [&](const at::Tensor& t, double value) {
      return at::cat({t, at::full({kPadding, t.size(1)}, value, t.options())});
    };
    const at::Tensor x = draw({c.total(), c.in}), w = draw({c.groups(), c.out, c.in}), b = draw({c.groups(), c.out}),
                     dy = draw({c.total(), c.out});
    const Computed exact = computed(x, w, b, dy, 0.5, group_rows(c.rows, x, /*with_members=*/true));
    const at::Tensor counts = at::tensor(c.rows, at::kLong), buffer = with_padding(x, std::nan(""));
    const RowGroups groups = group_counted_rows(counts, buffer, c.total(), /*with_members=*/true);
    EXPECT_EQ(groups.count(), c.groups());
    EXPECT_EQ(rows_on_host(groups), c.rows);
    const Computed got = computed(buffer, w, b, with_padding(dy, 7), 0.5, groups);
    const auto padded = [&](const at::Tensor& t) { return with_padding(t, 0); };
    EXPECT_TRUE(got.y.equal(padded(exact.y))) << c.name(0);
    EXPECT_TRUE(got.dx.equal(padded(exact.dx))) << c.name(0);
    EXPECT_TRUE(got.dw.equal(exact.dw)) << c.name(0);
    EXPECT_TRUE(got.db.equal(exact.db)) << c.name(0);
  });
}

// Counted rows may fill the buffer. A dry run assumes groups of equal size.
TEST(GroupedProductTest, CountedRowsMayFillTheBuffer) {
  ASSERT_TRUE(kernels::choose("reference"));
  const at::Tensor x = draw({6, 8}), counts = at::tensor({4, 0, 2}, at::kLong);
  EXPECT_FALSE(group_counted_rows(counts, x, 6, false).beyond.defined());
  EXPECT_EQ(rows_on_host(group_counted_rows(counts, x, 3, false)), (std::vector<int64_t>{4, 0, 2}));
  const at::Tensor wide = x.to(at::kDouble);
  EXPECT_EQ(group_counted_rows(counts, wide, 6, false).rows, (std::vector<int64_t>{4, 0, 2}));
  EXPECT_THROW(group_counted_rows(counts + 1, wide, 3, false), c10::Error);
  EXPECT_THROW(group_counted_rows(counts.narrow(0, 0, 2), wide, 6, false), c10::Error);
  const at::TensorOptions meta(at::kMeta);
  EXPECT_EQ(group_counted_rows(at::empty({3}, meta.dtype(at::kLong)), at::empty({12, 8}, meta), 6, false).rows,
            (std::vector<int64_t>{2, 2, 2}));
}

TEST(GroupedProductTest, CallsDoNotGrowWithTheGroups) {
  ASSERT_TRUE(kernels::choose("reference"));
  const auto calls_of = [](int64_t experts) {
    const std::vector<int64_t> rows(experts, 64 / experts);
    const at::Tensor x = draw({64, 16}), w = draw({experts, 24, 16}), b = draw({experts, 24}), dy = draw({64, 24});
    const titan::testing::CallCounter calls;
    computed(x, w, b, dy, 1, group_rows(rows, x, /*with_members=*/true));
    return calls.count();
  };
  EXPECT_EQ(calls_of(2), calls_of(32));
  set_use_grouped_gemm(false);  // Simulates a device without a kernel for grouped products.
  EXPECT_LT(calls_of(2), calls_of(32));
  set_use_grouped_gemm(true);
}

}  // namespace
}  // namespace titan::nn
