#include <gtest/gtest.h>

#include <algorithm>

#include "common/plan/models/activations.h"
#include "tests/testing/allocation_meter.h"
#include "tests/testing/draw.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/bf16_oracle.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/loss.h"

// Compares a head's loss in parts of the vocabulary with that of all logits in plain fp64.
namespace titan::nn {
namespace {

using testing::rounded;
using testing::Tensors;

Parameter weight_of(const at::Tensor& value) {
  Parameter parameter{"output.weight", value.sizes().vec(), {}, {}};
  parameter.weight = value;
  return parameter;
}

at::Tensor draw_labels(int64_t vocabulary, int64_t rows, double ignored) {
  const at::Tensor labels = at::randint(vocabulary, {2, rows}, at::kLong);
  return labels.masked_fill(at::rand({2, rows}).lt(ignored), kIgnoreIndex);
}

at::Tensor plain_loss(const Tensors& t, const at::Tensor& labels, double softcap = 0) {
  const at::Tensor logits = at::matmul(t[0], t[1].t());
  return cross_entropy_sum(softcap > 0 ? softcap * at::tanh(logits / softcap) : logits, labels);
}

struct Precision {
  at::ScalarType type;
  double rounding;  // Allowed in addition to the error of a few sums.
};
constexpr Precision kPrecisions[] = {{at::kDouble, 1e-14}, {at::kFloat, 2e-6}, {at::kBFloat16, 1.0 / 256}};

TEST(HeadLossTest, EqualsTheLossOfAllLogits) {
  kernels::testing::with_every_row_kernel([] {
    at::manual_seed(1);
    titan::testing::Draw pick(5);
    for (int i = 0; i < 30; ++i) {
      const int64_t vocabulary = pick({1, 3, 64, 301, 1000}), rows = pick({1, 7, 40}), dim = pick({1, 16, 130});
      const int64_t columns = pick({1, 5, 64, 100, 4096});
      const at::Tensor labels = draw_labels(vocabulary, rows, i % 5 == 0 ? 1.0 : 0.2);
      const double softcap = i % 3 == 1 ? 4 : 0;
      const auto by_parts = [&](const Tensors& t) {
        return head_cross_entropy_sum(t[0], weight_of(t[1]), labels, columns, /*vocabulary=*/nullptr, softcap);
      };
      const std::string what = std::to_string(columns) + " of " + std::to_string(vocabulary) + " columns, " +
                               std::to_string(rows) + " rows of " + std::to_string(dim);
      // Logits have order 1 to 10, so that softmax is neither even nor a single entry.
      const at::Tensor x = rounded({2, rows, dim}), weight = rounded({vocabulary, dim}) * 0.5;
      Tensors exact{x.clone().requires_grad_(), weight.clone().requires_grad_()};
      const Tensors truth = testing::results_of(exact, at::full({}, 0.25, at::kDouble),
                                                [&](const Tensors& t) { return plain_loss(t, labels, softcap); });
      const double largest = at::matmul(x, weight.t()).abs().max().item<double>();
      for (const Precision& one : kPrecisions) {
        Tensors leaves{x.to(one.type, /*non_blocking=*/false, /*copy=*/true).requires_grad_(),
                       weight.to(one.type, /*non_blocking=*/false, /*copy=*/true).requires_grad_()};
        const Tensors ours = testing::results_of(leaves, at::full({}, 0.25, at::kDouble), by_parts);
        EXPECT_EQ(ours[0].scalar_type(), accumulate_type(one.type));
        for (size_t k = 0; k < ours.size(); ++k) {
          // A logit's rounding moves its token's loss by at most the same amount.
          const double scale = k == 0 ? static_cast<double>(labels.numel()) * (1 + largest)
                                      : truth[k].abs().max().item<double>() * (1 + largest) + 1e-30;
          EXPECT_LE((ours[k].to(at::kDouble) - truth[k]).abs().max().item<double>(), one.rounding * scale)
              << what << ", " << c10::toString(one.type) << ", result " << k;
        }
      }
    }
  });
}

// The gradient of capped logits is that of the formula.
TEST(HeadLossTest, CappedLogits) {
  at::manual_seed(9);
  const at::Tensor logits = 5 * at::randn({2, 7, 30}, at::kDouble), pull = at::randn({2, 7, 30}, at::kDouble);
  Tensors a{logits.clone().requires_grad_()}, b{logits.clone().requires_grad_()};
  const Tensors ours = testing::results_of(a, pull, [](const Tensors& t) { return soft_capped(t[0], 3); });
  const Tensors theirs = testing::results_of(b, pull, [](const Tensors& t) { return 3 * at::tanh(t[0] / 3); });
  for (size_t k = 0; k < 2; ++k) EXPECT_LE((ours[k] - theirs[k]).abs().max().item<double>(), 1e-13) << k;
}

TEST(HeadLossTest, LargeLogits) {
  at::manual_seed(2);
  for (const double size : {1e3, 1e5}) {
    const at::Tensor x = at::randn({1, 20, 8}, at::kDouble) * size, weight = at::randn({500, 8}, at::kDouble);
    const at::Tensor labels = at::randint(500, {1, 20}, at::kLong);
    const double exact = plain_loss({x, weight}, labels).item<double>();
    const double ours = head_cross_entropy_sum(x, weight_of(weight), labels, 64).item<double>();
    EXPECT_NEAR(ours / exact, 1, 1e-12);
  }
}

TEST(HeadLossTest, NanInputsGiveANanLoss) {
  kernels::testing::with_every_row_kernel([] {
    for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
      at::Tensor x = at::randn({1, 4, 8}).to(type);
      x[0][2][0] = std::numeric_limits<double>::quiet_NaN();
      const at::Tensor labels = at::randint(200, {1, 4}, at::kLong);
      const at::Tensor loss = head_cross_entropy_sum(x, weight_of(at::randn({200, 8}).to(type)), labels, 64);
      EXPECT_TRUE(std::isnan(loss.item<double>()));
    }
  });
}

TEST(HeadLossTest, LabelOutsideTheVocabularyIsAnError) {
  kernels::testing::with_every_row_kernel([] {
    const at::Tensor x = at::randn({1, 3, 8}).to(at::kBFloat16), weight = at::randn({200, 8}).to(at::kBFloat16);
    for (const int64_t label : {int64_t{200}, int64_t{-1}})
      EXPECT_ANY_THROW(head_cross_entropy_sum(x, weight_of(weight), at::full({1, 3}, label, at::kLong), 64).item())
          << label;
  });
}

// Besides the gradients, only a part's logits, their copies and a few numbers per token are allocated.
TEST(HeadLossTest, NeverAllocatesAllLogits) {
  testing::AllocationMeter meter;
  const testing::AllocationMeter::Scope scope(meter);
  constexpr int64_t kRows = 256, kVocabulary = 128256, kDim = 4, kMaxBytes = 1 << 20;
  const at::Tensor x = at::randn({1, kRows, kDim}).requires_grad_();
  const Parameter weight = weight_of(at::randn({kVocabulary, kDim}).requires_grad_());
  const at::Tensor labels = at::randint(kVocabulary, {1, kRows}, at::kLong);
  const int64_t columns = models::logit_columns(kRows, kVocabulary, sizeof(float), kMaxBytes);
  const int64_t before = meter.begin();
  const at::Tensor loss = head_cross_entropy_sum(x, weight, labels, columns);
  EXPECT_LE(meter.highest() - before, 3 * kMaxBytes);
  (void)torch::autograd::grad({loss}, {x, weight.weight});
  EXPECT_LE(meter.highest() - before, weight.weight.nbytes() + 3 * kMaxBytes);
}

TEST(LogitColumnsTest, PartsAreEvenAndFit) {
  titan::testing::Draw pick(9);
  for (int i = 0; i < 1000; ++i) {
    const int64_t tokens = pick({0, 1, 100, 8192, 1 << 20}), columns = pick({1, 63, 64, 2048, 32000, 128256, 151936});
    const int64_t bytes = pick({2, 4, 8}), max_bytes = pick({0, 1, 1 << 20, 64 << 20, int64_t{1} << 40});
    const int64_t some = models::logit_columns(tokens, columns, bytes, max_bytes);
    ASSERT_GE(some, 1);
    ASSERT_LE(some, columns);
    if (max_bytes == 0 || tokens * columns * bytes <= max_bytes) {
      EXPECT_EQ(some, columns);
      continue;
    }
    EXPECT_TRUE(some == columns || some % 64 == 0) << some;
    EXPECT_TRUE(some <= 64 || tokens * some * bytes <= max_bytes) << tokens << " tokens, " << some << " columns";
    const int64_t parts = (columns + some - 1) / some;
    EXPECT_GT(columns - (parts - 1) * some, some - 64 * parts) << "the last part is far shorter";
  }
}

}  // namespace
}  // namespace titan::nn
