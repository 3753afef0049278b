#include "worker/nn/grouped_product.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "tests/testing/call_counter.h"
#include "tests/testing/draw.h"
#include "tests/worker/kernels/chosen_kernels.h"

// Experts' products with biases, in one call for all experts and in one for each, against fp64.
namespace titan::nn {
namespace {

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

// `roundings` to bf16 of numbers no larger than `size`.
void expect_roundings(const at::Tensor& result, const at::Tensor& exact, const at::Tensor& size, int roundings,
                      const std::string& what) {
  ASSERT_EQ(result.sizes(), exact.sizes()) << what;
  if (exact.numel() == 0) return;
  const at::Tensor bound = size.abs() * (roundings / 256.0) + 1e-4;
  EXPECT_TRUE((result.to(at::kDouble) - exact).abs().le(bound).all().item<bool>()) << what;
}

TEST(GroupedProductTest, WithBiasesEqualsEachGroupsOwn) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(11);
    titan::testing::Draw pick(11);
    for (const std::vector<int64_t>& rows :
         {std::vector<int64_t>{5, 0, 33, 1}, {0, 0}, {64}, {0, 1}, {1, 2, 3, 4, 5, 6, 7, 8}}) {
      for (const bool one_call : {true, false}) {
        const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
        const auto count = static_cast<int64_t>(rows.size());
        const int64_t in = pick({8, 24, 36}), out = pick({16, 40, 27});
        const double factor = pick({1, 2}) / 2.0;
        const auto draw = [](const std::vector<int64_t>& shape) { return at::randn(shape).to(at::kBFloat16); };
        const at::Tensor x = draw({total, in}), w = draw({count, out, in}), b = draw({count, out}),
                         dy = draw({total, out});
        const RowGroups groups = one_call ? group_rows(rows, x, /*with_members=*/true) : RowGroups{rows, {}, {}};
        const Computed got = computed(x, w, b, dy, factor, groups);
        for_each_group(rows, [&](int64_t group, int64_t first, int64_t some) {
          const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, some).to(at::kDouble); };
          const std::string what = "group " + std::to_string(group) + ", " + std::to_string(in) + " to " +
                                   std::to_string(out) + (one_call ? ", in one call" : "");
          const at::Tensor weight = w[group].to(at::kDouble);
          const at::Tensor product = at::matmul(part(x), weight.t()), addend = b[group].to(at::kDouble) * factor;
          expect_roundings(part(got.y), product + addend, product.abs() + addend.abs(), 2, what);
          expect_roundings(part(got.dx), at::matmul(part(dy), weight), at::matmul(part(dy), weight), 1, what);
          const at::Tensor dw = at::matmul(part(dy).t(), part(x)), db = part(dy).sum(0);
          expect_roundings(got.dw[group], dw, dw, 1, what);
          expect_roundings(got.db[group], db, db, 1, what);
        });
      }
    }
  });
}

TEST(GroupedProductTest, TakesNoMoreCallsForMoreGroups) {
  ASSERT_TRUE(kernels::choose("reference"));
  const auto calls_of = [](int64_t experts) {
    const std::vector<int64_t> rows(experts, 64 / experts);
    const auto draw = [](const std::vector<int64_t>& shape) { return at::randn(shape).to(at::kBFloat16); };
    const at::Tensor x = draw({64, 16}), w = draw({experts, 24, 16}), b = draw({experts, 24}), dy = draw({64, 24});
    const titan::testing::CallCounter calls;
    computed(x, w, b, dy, 1, group_rows(rows, x, /*with_members=*/true));
    return calls.count();
  };
  EXPECT_EQ(calls_of(2), calls_of(32));
  multiply_groups_at_once(false);  // A device without a kernel for them.
  EXPECT_LT(calls_of(2), calls_of(32));
  multiply_groups_at_once(true);
}

}  // namespace
}  // namespace titan::nn
