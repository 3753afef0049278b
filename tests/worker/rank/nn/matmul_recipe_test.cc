#include "worker/rank/nn/matmul_recipe.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/worker/rank/nn/rounded_products.h"
#include "worker/rank/nn/matmul_autograd.h"

// Tests products with quantized operands: compares all that layers do with a recipe with the same written out in fp64.
namespace titan::nn {
namespace {

using titan::testing::RoundedProducts;

const RoundedProducts kRounded;

Parameter weight_of(const std::vector<int64_t>& shape) {
  Parameter weight{"w", shape, {}, {}};
  weight.weight = at::randn(shape, at::kDouble).set_requires_grad(true);
  weight.products = &kRounded;
  return weight;
}

at::Tensor as_read(const at::Tensor& x, at::ScalarType type = at::kFloat8_e4m3fn) {
  return RoundedProducts::exact(RoundedProducts::quantised(x.detach(), type));
}

void expect_same(const at::Tensor& found, const at::Tensor& truth, const char* what) {
  EXPECT_LE((found - truth).abs().max().item<double>(), 1e-12 * truth.abs().max().item<double>()) << what;
}

struct TwoProducts {
  Parameter first = weight_of({24, 20}), second = weight_of({12, 20});
  at::Tensor x = at::randn({3, 5, 20}, at::kDouble).set_requires_grad(true);
  std::vector<at::Tensor> dy{at::randn({3, 5, 24}, at::kDouble), at::randn({3, 5, 12}, at::kDouble)};
  std::vector<at::Tensor> leaves{x, first.weight, second.weight};

  std::vector<at::Tensor> results() const { return matrix_products(x, {&first, &second}); }
  std::vector<at::Tensor> true_gradients() const {
    const at::Tensor left = as_read(dy[0], at::kFloat8_e5m2), right = as_read(dy[1], at::kFloat8_e5m2);
    const at::Tensor rows = as_read(x).flatten(0, 1);
    return {at::matmul(left, as_read(first.weight)) + at::matmul(right, as_read(second.weight)),
            at::matmul(left.flatten(0, 1).t(), rows), at::matmul(right.flatten(0, 1).t(), rows)};
  }
};

TEST(MatmulRecipeTest, QuantizesTheOperandsOfProducts) {
  at::manual_seed(1);
  const TwoProducts of;
  const std::vector<at::Tensor> y = of.results();
  expect_same(y[0].detach(), at::matmul(as_read(of.x), as_read(of.first.weight).t()), "first result");
  expect_same(y[1].detach(), at::matmul(as_read(of.x), as_read(of.second.weight).t()), "second result");
  EXPECT_GT((y[0].detach() - at::matmul(of.x.detach(), of.first.weight.detach().t())).abs().max().item<double>(), 1e-3);
  const std::vector<at::Tensor> truth = of.true_gradients(), found = torch::autograd::grad(y, of.leaves, of.dy);
  for (size_t i = 0; i < truth.size(); ++i) expect_same(found[i], truth[i], "gradient");
}

// The graph saves a layer's input only in the recipe's quantized form.
TEST(MatmulRecipeTest, SavesOnlyTheQuantizedInput) {
  at::manual_seed(2);
  const TwoProducts of;
  const at::Tensor input = of.x * 2;
  const auto uses = input.storage().use_count();
  const std::vector<at::Tensor> y = matrix_products(input, {&of.first, &of.second});
  EXPECT_EQ(input.storage().use_count(), uses);
}

TEST(MatmulRecipeTest, WeightGradientsCanBeDeferred) {
  at::manual_seed(3);
  TwoProducts of;
  DeferredGradients deferred;
  of.first.deferred = of.second.deferred = &deferred;
  const std::vector<at::Tensor> y = of.results(), truth = of.true_gradients();
  GradientQueue queue;
  deferred.open(queue);
  const auto now = torch::autograd::grad(y, of.leaves, of.dy, {}, false, /*allow_unused=*/true);
  deferred.close();
  expect_same(now[0], truth[0], "input's gradient");
  ASSERT_EQ(queue.size(), 2U);
  expect_same(queue[0].compute(), truth[2], "second weight's gradient");
  expect_same(queue[1].compute(), truth[1], "first weight's gradient");
}

// A weight may be gathered in eight bits; its leaf then has no memory, in either pass.
TEST(MatmulRecipeTest, UsesWeightsGatheredInEightBits) {
  at::manual_seed(4);
  TwoProducts of;
  const std::vector<at::Tensor> truth = of.true_gradients(), expected = of.results();
  for (Parameter* one : {&of.first, &of.second}) {
    one->arrived = RoundedProducts::quantised(one->weight.detach(), at::kFloat8_e4m3fn);
    one->weight.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr());
    one->weight.storage().unsafeGetStorageImpl()->set_nbytes(0);
  }
  const std::vector<at::Tensor> y = of.results();
  for (size_t i = 0; i < y.size(); ++i) EXPECT_TRUE(y[i].equal(expected[i]));
  const auto found = torch::autograd::grad(y, of.leaves, of.dy);
  for (size_t i = 0; i < truth.size(); ++i) expect_same(found[i], truth[i], "gradient");
}

TEST(MatmulRecipeTest, QuantizesRowsOfExperts) {
  at::manual_seed(5);
  const std::vector<int64_t> rows = {4, 0, 9, 1};
  const RowGroups groups{.rows = rows};
  const Parameter weights = weight_of({4, 10, 6});
  const at::Tensor x = at::randn({14, 6}, at::kDouble).set_requires_grad(true), dy = at::randn({14, 10}, at::kDouble);
  const at::Tensor y = grouped_product(x, weights, nullptr, 1, groups);
  const auto gradients = torch::autograd::grad({y}, {x, weights.weight}, {dy});
  for_each_group(rows, [&](int64_t group, int64_t first, int64_t count) {
    if (count == 0) return;
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, count); };
    const at::Tensor w = as_read(weights.weight)[group], left = part(as_read(dy, at::kFloat8_e5m2));
    expect_same(part(y.detach()), at::matmul(part(as_read(x)), w.t()), "rows");
    expect_same(part(gradients[0]), at::matmul(left, w), "rows' gradient");
    expect_same(gradients[1][group], at::matmul(left.t(), part(as_read(x))), "weights' gradient");
  });
  EXPECT_EQ(gradients[1][1].abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace titan::nn
