#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/testing/call_counter.h"
#include "tests/testing/draw.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/bf16_oracle.h"
#include "tests/worker/rank/nn/grouped_cases.h"
#include "worker/rank/nn/matmul.h"
#include "worker/rank/nn/matmul_autograd.h"

// Compares the products of layers with fp64, for all kernels.
namespace titan::nn {
namespace {

using titan::testing::expect_rounded;

// A bf16 tensor, and the same numbers in fp64.
struct Operand {
  explicit Operand(const std::vector<int64_t>& shape) : given(at::randn(shape).to(at::kBFloat16)) {}
  at::Tensor exact() const { return given.to(at::kDouble); }
  at::Tensor given;
};

TEST(ProductsTest, AreRoundedOnceForRandomShapes) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(3);
    titan::testing::Draw pick(3);
    for (int i = 0; i < 25; ++i) {
      const int64_t rows = pick({0, 1, 2, 31, 100}), out = pick({1, 5, 32, 130}), in = pick({1, 7, 64, 200});
      const Operand x({rows, pick({1, 3}), in}), w({out, in}), dy({rows, x.given.size(1), out});
      const std::string what =
          "rows " + std::to_string(rows) + ", out " + std::to_string(out) + ", in " + std::to_string(in);
      expect_rounded(matmul_nt(x.given, w.given), at::matmul(x.exact(), w.exact().t()), what);
      expect_rounded(matmul_nn(dy.given, w.given), at::matmul(dy.exact(), w.exact()), what);
      expect_rounded(weight_gradient(dy.given, x.given),
                     at::matmul(dy.exact().flatten(0, 1).t(), x.exact().flatten(0, 1)), what);
    }
  });
}

TEST(ProductsTest, TakeAnyLayout) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(4);
    const Operand x({40, 6, 20}), w({20, 30});
    const at::Tensor turned = x.given.transpose(0, 1), wide = w.given.t();  // [6, 40, 20], [30, 20]
    const at::Tensor exact = at::matmul(x.exact().transpose(0, 1), w.exact());
    expect_rounded(matmul_nt(turned, wide), exact, "turned");
    expect_rounded(matmul_nt(turned.narrow(1, 3, 9), wide.narrow(0, 4, 21)), exact.narrow(1, 3, 9).narrow(2, 4, 21),
                   "pieces");
    const at::Tensor one = at::ones({1}, at::kBFloat16).expand({50, 30});
    expect_rounded(matmul_nn(one, wide), at::matmul(one.to(at::kDouble), wide.to(at::kDouble)),
                   "one number everywhere");
  });
}

// The weights of a vocabulary are packed piece by piece, and their gradients are summed so, but each result is rounded
// once.
TEST(ProductsTest, AreRoundedOnceForAVocabulary) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(5);
    const Operand x({3, 96}), w({180001, 96}), dy({3, 180001});
    expect_rounded(matmul_nt(x.given, w.given), at::matmul(x.exact(), w.exact().t()), "logits");
    const at::Tensor exact = at::matmul(dy.exact(), w.exact());
    const at::Tensor error = (matmul_nn(dy.given, w.given).to(at::kDouble) - exact).abs();
    EXPECT_LE(error.max().item<double>(), exact.abs().max().item<double>() / 256);
    expect_rounded(weight_gradient(dy.given, x.given), at::matmul(dy.exact().t(), x.exact()), "weights' gradient");
  });
}

TEST(ProductsTest, AreAddedToASum) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(8);
    const Operand dy({7, 3, 40}), w({40, 70}), more({7, 3, 40});
    at::Tensor sum;
    add_matmul_nn(sum, dy.given, w.given);
    EXPECT_TRUE(sum.equal(matmul_nn(dy.given, w.given)));
    const at::Tensor before = sum.to(at::kDouble);
    add_matmul_nn(sum, more.given, w.given);
    const at::Tensor exact = before + at::matmul(more.exact(), w.exact());
    // LibTorch rounds the product before it adds it.
    EXPECT_LE((sum.to(at::kDouble) - exact).abs().max().item<double>(), exact.abs().max().item<double>() / 128);
    if (can_use_own_gemm(dy.given, w.given)) expect_rounded(sum, exact, "once");
  });
}

// Several weights of one input give the same as separate products: results, the input's gradient as the sum of theirs,
// and each weight's. Some results are unused, and some weights' gradients are left for later.
TEST(ProductsTest, SharedInputGivesTheSameAsSeparateProducts) {
  kernels::testing::with_every_choice([] {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const double bound = type == at::kDouble ? 1e-13 : type == at::kFloat ? 1e-5 : 0.02;
      SCOPED_TRACE(c10::toString(type));
      at::manual_seed(9);
      const at::Tensor x = Operand({5, 4, 48}).given.to(type).set_requires_grad(true);
      DeferredGradients deferred;
      std::vector<Parameter> weights;
      std::vector<at::Tensor> leaves{x}, dy;
      for (const int64_t out : {64, 16, 30}) {
        weights.push_back({"w" + std::to_string(out), {out, 48}, {}, {}});
        weights.back().weight = Operand({out, 48}).given.to(type).set_requires_grad(true);
        leaves.push_back(weights.back().weight);
        dy.push_back(Operand({5, 4, out}).given.to(type));
      }
      for (Parameter& weight : weights) weight.deferred = &deferred;
      const auto exact = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
      const auto expect_close = [bound](const at::Tensor& found, const at::Tensor& truth, const char* what) {
        const double error = (found.to(at::kDouble) - truth).abs().max().item<double>();
        EXPECT_LE(error, bound * truth.abs().max().item<double>()) << what;
      };
      const auto results = [&] { return matrix_products(x, {&weights[0], &weights[1], &weights[2]}); };
      const std::vector<at::Tensor> y = results();
      ASSERT_EQ(y.size(), 3U);
      for (const size_t unused : {size_t{3}, size_t{1}}) {
        const auto outputs = results();
        std::vector<at::Tensor> used, used_dy;
        at::Tensor sum = at::zeros_like(exact(x));
        for (size_t i = 0; i < 3; ++i) {
          expect_close(outputs[i].detach(), at::matmul(exact(x), exact(leaves[i + 1]).t()), "result");
          if (i == unused) continue;
          used.push_back(outputs[i]);
          used_dy.push_back(dy[i]);
          sum += at::matmul(exact(dy[i]), exact(leaves[i + 1]));
        }
        const auto gradients = torch::autograd::grad(used, leaves, used_dy, {}, false, /*allow_unused=*/true);
        expect_close(gradients[0], sum, "input's gradient");
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(gradients[i + 1].defined(), i != unused);
          if (i == unused) continue;
          const at::Tensor truth = at::matmul(exact(dy[i]).flatten(0, 1).t(), exact(x).flatten(0, 1));
          expect_close(gradients[i + 1], truth, "weight's gradient");
        }
      }
      const auto at_once = torch::autograd::grad(y, leaves, dy);
      GradientQueue queue;
      deferred.open(queue);
      const auto now = torch::autograd::grad(results(), leaves, dy, {}, false, /*allow_unused=*/true);
      deferred.close();
      EXPECT_TRUE(now[0].equal(at_once[0]));
      ASSERT_EQ(queue.size(), 3U);
      for (const DeferredGradient& one : queue) {
        const size_t index = static_cast<size_t>(one.parameter - weights.data());
        EXPECT_FALSE(now[index + 1].defined());
        EXPECT_TRUE(one.compute().equal(at_once[index + 1]));
      }
    }
  });
}

TEST(ProductsTest, GroupedProductsEqualThoseOfEachGroup) {
  titan::testing::for_each_grouped_case(6, [](const titan::testing::GroupedCase& c) {
    const Operand x({c.total(), c.in}), w({c.groups(), c.out, c.in}), dy({c.total(), c.out});
    const RowGroups groups = c.groups_of(x.given, /*with_members=*/false);
    const at::Tensor y = grouped_matmul_nt(x.given, w.given, groups);
    const at::Tensor dx = grouped_matmul_nn(dy.given, w.given, groups);
    const at::Tensor dw = grouped_weight_gradient(dy.given, x.given, groups);
    for_each_group(c.rows, [&](int64_t group, int64_t first, int64_t some) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, some); };
      const std::string what = c.name(group);
      expect_rounded(part(y), at::matmul(part(x.exact()), w.exact()[group].t()), what);
      expect_rounded(part(dx), at::matmul(part(dy.exact()), w.exact()[group]), what);
      expect_rounded(dw[group], at::matmul(part(dy.exact()).t(), part(x.exact())), what);
    });
  });
}

// On a GPU the host would spend microseconds on each expert. There are three products, however many experts.
TEST(ProductsTest, GroupedProductsTakeOneCallEach) {
  ASSERT_TRUE(kernels::choose("reference"));
  const std::vector<int64_t> rows(32, 3);
  const Operand x({96, 16}), w({32, 24, 16}), dy({96, 24});
  const RowGroups groups = group_rows(rows, x.given);
  const titan::testing::CallCounter calls;
  grouped_matmul_nt(x.given, w.given, groups);
  grouped_matmul_nn(dy.given, w.given, groups);
  grouped_weight_gradient(dy.given, x.given, groups);
  EXPECT_EQ(calls.count(), 5);  // Two of them are views that transpose.
}

TEST(ProductsTest, UnalignedAndTransposedGroupsAreRight) {
  ASSERT_TRUE(kernels::choose("reference"));
  const Operand memory({40 * 16 + 1});
  const Operand w({2, 24, 16});
  const at::Tensor x = memory.given.narrow(0, 1, int64_t{40} * 16).view({40, 16});  // Misaligned by two bytes.
  const at::Tensor y = grouped_matmul_nt(x, w.given, group_rows({30, 10}, x));
  expect_rounded(y.narrow(0, 30, 10), at::matmul(x.narrow(0, 30, 10).to(at::kDouble), w.exact()[1].t()), "off");
  const at::Tensor turned = at::randn({16, 40}).to(at::kBFloat16).t();
  const at::Tensor z = grouped_matmul_nt(turned, w.given, group_rows({30, 10}, turned));
  expect_rounded(z.narrow(0, 0, 30), at::matmul(turned.narrow(0, 0, 30).to(at::kDouble), w.exact()[0].t()), "turned");
}

TEST(ProductsTest, OtherTypesUseLibTorch) {
  kernels::testing::with_every_choice([] {
    const at::Tensor x = at::randn({4, 8}), w = at::randn({5, 8});
    EXPECT_TRUE(matmul_nt(x, w).equal(at::linear(x, w)));
    EXPECT_TRUE(weight_gradient(at::linear(x, w), x).equal(at::mm(at::linear(x, w).t(), x)));
  });
}

// No speed is required: it must be positive for every type and kernel, and the number of threads unchanged.
TEST(ProductsTest, SpeedIsMeasured) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  kernels::testing::with_every_choice([] {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const double flops = product_speed(type);
      EXPECT_GT(flops, 1e6);
      EXPECT_LT(flops, 1e14);
    }
  });
  EXPECT_EQ(at::get_num_threads(), 2);
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace titan::nn
