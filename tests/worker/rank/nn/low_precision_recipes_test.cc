#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/testing/draw.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/plain_float8.h"
#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/low_precision/scaled_mm.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/meta_kernels.h"
#include "worker/rank/nn/saved_activations.h"

// Compares layers with eight-bit products, in every type and by every kernel, with fp64 products of the same eight-bit
// numbers, written out from their definitions (plain_float8.h).
namespace titan::nn {
namespace {

using titan::testing::kE4m3;
using titan::testing::kE5m2;
using titan::testing::plain_along;
using titan::testing::plain_mx;
using titan::testing::plain_tensorwise;

constexpr LowPrecisionRecipe kRecipes[] = {LowPrecisionRecipe::kFloat8Tensorwise, LowPrecisionRecipe::kFloat8Rowwise,
                                           LowPrecisionRecipe::kFloat8RowwiseGwHp, LowPrecisionRecipe::kMxfp8};

std::unique_ptr<MatmulRecipe> make(LowPrecisionRecipe recipe) {
  return make_low_precision_recipe({.recipe = recipe, .rounding = MxRounding::kRceil});
}

// Quantizes the operands of a matrix's three products as a recipe does.
struct Read {
  LowPrecisionRecipe recipe;

  at::Tensor along(const at::Tensor& x, int64_t dim, const titan::testing::Format& format) const {
    if (recipe == LowPrecisionRecipe::kFloat8Tensorwise) return plain_tensorwise(x, format);
    return recipe == LowPrecisionRecipe::kMxfp8 ? plain_mx(x, dim, MxRounding::kRceil) : plain_along(x, dim);
  }
  at::Tensor result(const at::Tensor& x, const at::Tensor& w) const {
    return at::mm(along(x, 1, kE4m3), along(w, 1, kE4m3).t());
  }
  at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& w) const {
    const bool one_scale = recipe == LowPrecisionRecipe::kFloat8RowwiseGwHp;
    return at::mm(along(dy, 1, kE5m2), one_scale ? plain_tensorwise(w, kE4m3, true) : along(w, 0, kE4m3));
  }
  at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) const {
    const bool exact = recipe == LowPrecisionRecipe::kFloat8RowwiseGwHp;
    const at::Tensor left = exact ? dy.to(at::kDouble) : along(dy, 0, kE5m2);
    return at::mm(left.t(), exact ? x.to(at::kDouble) : along(x, 0, kE4m3));
  }
};

// Expects errors relative to the largest number: `roundings` to bf16, and 1e-6 per 1,024 of depth for sums in fp32.
void expect_near(const at::Tensor& found, const at::Tensor& exact, double roundings, const std::string& what) {
  ASSERT_EQ(found.sizes(), exact.sizes()) << what;
  if (exact.numel() == 0) return;
  const at::ScalarType type = found.scalar_type();
  const double bound = type == at::kBFloat16 ? roundings / 256 : type == at::kFloat ? 2e-6 : 1e-13;
  const double size = exact.abs().max().item<double>();
  EXPECT_LE((found.detach().to(at::kDouble) - exact).abs().max().item<double>(), bound * size) << what << " " << type;
}

Parameter parameter_of(const at::Tensor& value, const MatmulRecipe& recipe) {
  Parameter parameter{"w", value.sizes().vec(), {}, {}};
  parameter.weight = value.clone().set_requires_grad(true);
  parameter.products = &recipe;
  return parameter;
}

// Two weights that read one input, as wq and wk do.
struct Layer {
  Layer(const MatmulRecipe& recipe, at::ScalarType type, int64_t rows, int64_t in, int64_t out)
      : x(at::randn({2, rows, in}).to(type).set_requires_grad(true)),
        first(parameter_of(at::randn({out, in}).mul(0.05).to(type), recipe)),
        second(parameter_of(at::randn({16, in}).mul(0.05).to(type), recipe)),
        dy{at::randn({2, rows, out}).mul(1e-3).to(type), at::randn({2, rows, 16}).mul(1e-3).to(type)} {}

  std::vector<at::Tensor> results() const { return matrix_products(x, {&first, &second}); }
  std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& y) const {
    return torch::autograd::grad(y, {x, first.weight, second.weight}, dy);
  }
  at::Tensor rows() const { return x.detach().flatten(0, 1); }

  at::Tensor x;
  Parameter first, second;
  std::vector<at::Tensor> dy;
};

TEST(LowPrecisionTest, LayersComputeWithEightBits) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(1);
    titan::testing::Draw pick(1);
    for (const LowPrecisionRecipe recipe : kRecipes) {
      const std::unique_ptr<MatmulRecipe> products = make(recipe);
      for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
        for (int i = 0; i < 2; ++i) {
          const Layer layer(*products, type, pick({1, 17, 40}), pick({32, 80, 100}), pick({8, 48, 64}));
          const std::string what = "recipe " + std::to_string(static_cast<int>(recipe));
          const Read read{recipe};
          const at::Tensor w = layer.first.weight.detach(), v = layer.second.weight.detach();
          const at::Tensor dy = layer.dy[0].flatten(0, 1), dz = layer.dy[1].flatten(0, 1);
          const auto y = layer.results(), gradients = layer.gradients(y);
          expect_near(y[0].flatten(0, 1), read.result(layer.rows(), w), 1, what + " first result");
          expect_near(y[1].flatten(0, 1), read.result(layer.rows(), v), 1, what + " second result");
          expect_near(gradients[0].flatten(0, 1), read.input_gradient(dy, w) + read.input_gradient(dz, v), 2,
                      what + " input's gradient");
          expect_near(gradients[1], read.weight_gradient(dy, layer.rows()), 1, what + " first weight's");
          expect_near(gradients[2], read.weight_gradient(dz, layer.rows()), 1, what + " second weight's");
          EXPECT_EQ(y[0].scalar_type(), type);
          EXPECT_EQ(gradients[1].scalar_type(), type);
        }
      }
    }
  });
}

TEST(LowPrecisionTest, ExpertsComputeWithEightBits) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(2);
    const std::vector<int64_t> rows = {5, 0, 33, 1};
    for (const LowPrecisionRecipe recipe : kRecipes) {
      const std::unique_ptr<MatmulRecipe> products = make(recipe);
      for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
        const std::string what = "recipe " + std::to_string(static_cast<int>(recipe));
        const Parameter weights = parameter_of(at::randn({4, 24, 40}).mul(0.05).to(type), *products);
        const at::Tensor x = at::randn({39, 40}).to(type).set_requires_grad(true), dy = at::randn({39, 24}).to(type);
        // One choice computes with Titan's kernels, the others by LibTorch with one expert or all of them per call.
        const at::Tensor y = grouped_product(x, weights, nullptr, 1, group_rows(rows, x));
        const auto gradients = torch::autograd::grad({y}, {x, weights.weight}, {dy});
        at::Tensor result = at::zeros({39, 24}, at::kDouble), dx = at::zeros({39, 40}, at::kDouble);
        at::Tensor dw = at::zeros({4, 24, 40}, at::kDouble);
        Read read{recipe};
        for_each_group(rows, [&](int64_t group, int64_t first, int64_t count) {
          if (count == 0) return;
          const auto part = [&](const at::Tensor& t) { return t.detach().narrow(0, first, count); };
          at::Tensor w = weights.weight.detach()[group], left = part(dy), right = part(x);
          if (recipe == LowPrecisionRecipe::kFloat8Tensorwise) {  // This recipe has one scale for all experts and rows.
            w = plain_tensorwise(weights.weight.detach(), kE4m3)[group];
            left = part(plain_tensorwise(dy, kE5m2)), right = part(plain_tensorwise(x.detach(), kE4m3));
            part(result).copy_(at::mm(right, w.t())), part(dx).copy_(at::mm(left, w));
            dw[group].copy_(at::mm(left.t(), right));
          } else {
            part(result).copy_(read.result(right, w)), part(dx).copy_(read.input_gradient(left, w));
            dw[group].copy_(read.weight_gradient(left, right));
          }
        });
        expect_near(y, result, 1, what + " rows");
        expect_near(gradients[0], dx, 1, what + " rows' gradient");
        expect_near(gradients[1], dw, 1, what + " weights' gradient");
      }
    }
  });
}

TEST(LowPrecisionTest, ResultsDifferFromBf16WithinBounds) {
  at::manual_seed(3);
  for (const LowPrecisionRecipe recipe : kRecipes) {
    const std::unique_ptr<MatmulRecipe> products = make(recipe);
    Layer layer(*products, at::kBFloat16, 20, 64, 48);
    const auto low = layer.results(), low_gradients = layer.gradients(low);
    layer.first.products = layer.second.products = nullptr;
    const auto plain = layer.results(), gradients = layer.gradients(plain);
    const auto distance = [](const at::Tensor& a, const at::Tensor& b) {
      return ((a.detach() - b.detach()).to(at::kDouble).norm() / b.detach().to(at::kDouble).norm()).item<double>();
    };
    EXPECT_GT(distance(low[0], plain[0]), 1e-2);
    EXPECT_LT(distance(low[0], plain[0]), 6e-2);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const bool exact = recipe == LowPrecisionRecipe::kFloat8RowwiseGwHp && i > 0;
      EXPECT_LT(distance(low_gradients[i], gradients[i]), exact ? 4e-3 : 1e-1) << i;
      EXPECT_EQ(distance(low_gradients[i], gradients[i]) > 1e-2, !exact) << i;
    }
  }
}

// With one scale, a layer's input is saved in one byte per number; the other recipes save the input itself, once.
TEST(LowPrecisionTest, TensorwiseSavesTheInputInEightBits) {
  const at::Tensor x = at::randn({8, 64}).to(at::kBFloat16);
  const Operand saved = make(LowPrecisionRecipe::kFloat8Tensorwise)->of_input(x);
  EXPECT_EQ(saved.values.nbytes() + saved.scales.nbytes(), x.nbytes() / 2 + 4);
  for (const LowPrecisionRecipe recipe : {LowPrecisionRecipe::kFloat8Rowwise, LowPrecisionRecipe::kMxfp8}) {
    EXPECT_TRUE(make(recipe)->of_input(x).values.is_same(x));
  }
  // The graph saves no more than that.
  const std::unique_ptr<MatmulRecipe> products = make(LowPrecisionRecipe::kFloat8Tensorwise);
  const Layer layer(*products, at::kBFloat16, 4, 32, 16);
  const at::Tensor input = layer.x * 2;
  const auto uses = input.storage().use_count();
  const std::vector<at::Tensor> y = matrix_products(input, {&layer.first, &layer.second});
  EXPECT_EQ(input.storage().use_count(), uses);
}

TEST(LowPrecisionTest, SecondPassesAndDeferredGradientsHaveTheSameBits) {
  at::manual_seed(4);
  for (const LowPrecisionRecipe recipe : kRecipes) {
    const std::unique_ptr<MatmulRecipe> products = make(recipe);
    Layer layer(*products, at::kBFloat16, 12, 64, 32);
    const auto y = layer.results(), gradients = layer.gradients(y);

    SavedActivations saved;
    {
      const SavedActivations::Scope scope(saved, [n = 0](const OpCall&) mutable { return n++ == 0; });
      layer.results();
    }
    std::vector<at::Tensor> again;
    {
      const SavedActivations::Scope scope(saved);
      again = layer.results();
    }
    const auto recomputed = layer.gradients(again);

    DeferredGradients deferred;
    GradientQueue queue;
    layer.first.deferred = layer.second.deferred = &deferred;
    const auto split = layer.results();
    deferred.open(queue);
    const auto now = torch::autograd::grad(split, {layer.x, layer.first.weight, layer.second.weight}, layer.dy, {},
                                           false, /*allow_unused=*/true);
    deferred.close();
    ASSERT_EQ(queue.size(), 2U);

    EXPECT_TRUE(again[0].equal(y[0]) && again[1].equal(y[1]) && split[0].equal(y[0]));
    for (size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(recomputed[i].equal(gradients[i])) << i;
    EXPECT_TRUE(now[0].equal(gradients[0]));
    EXPECT_TRUE(queue[1].compute().equal(gradients[1]) && queue[0].compute().equal(gradients[2]));
  }
}

// Ranks that each have a part of the rows quantize them as one rank quantizes all.
TEST(LowPrecisionTest, RanksShareTensorwiseScales) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({10, 32}).to(at::kBFloat16);
  const at::Tensor group_amax = x.abs().max().to(at::kFloat);
  const auto over_ranks = [&](at::Tensor& amax) { amax.copy_(at::maximum(amax, group_amax)); };
  const std::unique_ptr<MatmulRecipe> whole = make(LowPrecisionRecipe::kFloat8Tensorwise);
  const std::unique_ptr<MatmulRecipe> part = make_low_precision_recipe(
      {.input_over_ranks = over_ranks, .gradient_over_ranks = over_ranks, .weight_over_ranks = over_ranks});
  const auto expect_parts = [&](Operand (MatmulRecipe::*of)(const at::Tensor&) const) {
    const Operand all = ((*whole).*of)(x);
    for (const int64_t first : {0, 5}) {
      const Operand half = ((*part).*of)(x.narrow(0, first, 5));
      EXPECT_TRUE(half.values.view(at::kByte).equal(all.values.narrow(0, first, 5).view(at::kByte)));
      EXPECT_TRUE(half.scales.equal(all.scales));
    }
  };
  expect_parts(&MatmulRecipe::of_input);
  expect_parts(&MatmulRecipe::of_weight);
  expect_parts(&MatmulRecipe::of_gradient);
  EXPECT_THROW(
      make_low_precision_recipe({.recipe = LowPrecisionRecipe::kFloat8Rowwise, .input_over_ranks = over_ranks}),
      c10::Error);
  EXPECT_THROW(make_low_precision_recipe({.recipe = LowPrecisionRecipe::kMxfp8, .weight_over_ranks = over_ranks}),
               c10::Error);
}

// A weight may be gathered in eight bits; its leaf then has no memory.
TEST(LowPrecisionTest, TensorwiseUsesWeightsGatheredInEightBits) {
  at::manual_seed(6);
  const std::unique_ptr<MatmulRecipe> products = make(LowPrecisionRecipe::kFloat8Tensorwise);
  Layer layer(*products, at::kBFloat16, 6, 32, 16);
  const auto y = layer.results(), gradients = layer.gradients(y);
  for (Parameter* one : {&layer.first, &layer.second}) {
    const Operand operand = products->of_weight(one->weight.detach());
    one->arrived = {operand.values, operand.scales};
    one->weight.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr());
    one->weight.storage().unsafeGetStorageImpl()->set_nbytes(0);
  }
  const auto arrived = layer.results(), arrived_gradients = layer.gradients(arrived);
  EXPECT_TRUE(arrived[0].equal(y[0]) && arrived[1].equal(y[1]));
  for (size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(arrived_gradients[i].equal(gradients[i])) << i;
  const Operand operand = products->of_weight(at::ones({16, 32}, at::kBFloat16));
  const std::unique_ptr<MatmulRecipe> rowwise = make(LowPrecisionRecipe::kFloat8Rowwise);
  EXPECT_THROW(rowwise->matmul_nt(rowwise->of_input(layer.x), operand), c10::Error);
}

// A dry run's tensors have the right shapes, emulated and in the form of a device with such products.
TEST(LowPrecisionTest, DryRunsHaveShapes) {
  use_meta_kernels();
  for (const int capability : {0, 100}) {
    set_cuda_capability(capability);
    for (const LowPrecisionRecipe recipe : kRecipes) {
      EXPECT_EQ(has_low_precision_matmul(recipe, at::kMeta), capability == 100);
      const std::unique_ptr<MatmulRecipe> products = make(recipe);
      const auto meta = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
      const Operand x = products->of_input(at::empty({2, 24, 40}, meta));
      const Operand w = products->of_weight(at::empty({16, 40}, meta));
      const Operand dy = products->of_gradient(at::empty({2, 24, 16}, meta));
      EXPECT_EQ(products->matmul_nt(x, w).sizes(), at::IntArrayRef({2, 24, 16}));
      at::Tensor sum;
      products->add_matmul_nn(sum, dy, w);
      products->add_matmul_nn(sum, dy, w);
      EXPECT_EQ(sum.sizes(), at::IntArrayRef({2, 24, 40}));
      EXPECT_EQ(sum.scalar_type(), at::kBFloat16);
      EXPECT_EQ(products->weight_gradient(dy, x).sizes(), at::IntArrayRef({16, 40}));
      const Operand rows = products->of_input(at::empty({20, 48}, meta));
      const Operand experts = products->of_weight(at::empty({2, 16, 48}, meta));
      const Operand gradient = products->of_gradient(at::empty({20, 16}, meta));
      const RowGroups groups{.rows = {8, 12}};
      EXPECT_EQ(products->grouped_matmul_nt(rows, experts, groups).sizes(), at::IntArrayRef({20, 16}));
      EXPECT_EQ(products->grouped_matmul_nn(gradient, experts, groups).sizes(), at::IntArrayRef({20, 48}));
      EXPECT_EQ(products->grouped_weight_gradient(gradient, rows, groups).sizes(), at::IntArrayRef({2, 16, 48}));
    }
  }
  set_cuda_capability(0);
}

TEST(LowPrecisionTest, DeviceProductsDependOnTheCapability) {
  const std::pair<int, bool> float8[] = {{80, false}, {89, true}, {90, true}}, mx[] = {{90, false}, {100, true}};
  for (const auto& [capability, has] : float8) {
    set_cuda_capability(capability);
    EXPECT_EQ(has_low_precision_matmul(LowPrecisionRecipe::kFloat8Rowwise, at::kCUDA), has);
  }
  for (const auto& [capability, has] : mx) {
    set_cuda_capability(capability);
    EXPECT_EQ(has_low_precision_matmul(LowPrecisionRecipe::kMxfp8, at::kCUDA), has);
  }
  EXPECT_FALSE(has_low_precision_matmul(LowPrecisionRecipe::kFloat8Rowwise, at::kCPU));
  set_cuda_capability(0);
}

// LibTorch has _scaled_mm with one scale per operand on the CPU, too, so this tests the layout and padding of its
// operands.
TEST(LowPrecisionTest, DevicesGetOperandsInTheirLayout) {
  at::manual_seed(7);
  const auto operand = [](int64_t rows, int64_t depth, at::ScalarType type, const at::Tensor& scales) {
    return Operand{at::randn({rows, depth}).to(type), scales};
  };
  const auto exact = [](const Operand& x) { return x.values.to(at::kDouble) * x.scales.to(at::kDouble); };
  const at::Tensor one = at::full({}, 0.25F), rows = at::exp2(at::randint(-4, 4, {21, 1}).to(at::kFloat));
  const at::Tensor columns = at::exp2(at::randint(-4, 4, {13, 1}).to(at::kFloat));
  for (const auto& [a, b] :
       {std::pair{operand(21, 37, at::kFloat8_e5m2, one), operand(13, 37, at::kFloat8_e4m3fn, one)},
        std::pair{operand(21, 37, at::kFloat8_e4m3fn, rows), operand(13, 37, at::kFloat8_e4m3fn, columns)}}) {
    const at::Tensor truth = at::mm(exact(a), exact(b).t());
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const at::Tensor product = scaled_mm(a, b, /*fast=*/false, type);
      EXPECT_EQ(product.scalar_type(), type);
      // Row scales are applied to a bf16 product: they are powers of two, so it is rounded once.
      EXPECT_TRUE(product.to(at::kDouble).allclose(truth, 1.0 / 128, 1e-3)) << (product - truth).abs().max();
    }
  }
}

// Devices get the rows of groups padded, each group from a multiple of sixteen on.
TEST(LowPrecisionTest, GroupsArePaddedForDevices) {
  const RowGroups by_host{.rows = {3, 0, 17, 16}}, by_device{.ends = at::tensor({3, 3, 20, 36}, at::kInt)};
  for (const RowGroups& groups : {by_host, by_device}) {
    const PaddedGroups to = pad_groups(groups, at::zeros({38, 4}));  // Two rows of no group.
    EXPECT_TRUE(to.ends.equal(at::tensor({16, 16, 48, 64}, at::kInt))) << to.ends;
    const at::Tensor expected = at::cat({at::arange(0, 3), at::arange(16, 33), at::arange(48, 64), at::arange(64, 66)});
    EXPECT_TRUE(to.places.equal(expected)) << to.places;
    EXPECT_GE(to.rows, 66);
  }
}

}  // namespace
}  // namespace titan::nn
