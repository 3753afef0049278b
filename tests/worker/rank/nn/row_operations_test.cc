#include <gtest/gtest.h>

#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/row_cases.h"

// Tests the layers' row operations in bf16, with and without Titan's own kernels.
namespace titan::nn {
namespace {

using kernels::testing::with_every_row_kernel;

TEST(RowOperationsTest, RmsNorm) {
  with_every_row_kernel([] { testing::check_rms_norm(at::kCPU); });
}

TEST(RowOperationsTest, SumAndRmsNorm) {
  with_every_row_kernel([] { testing::check_sum_and_rms_norm(at::kCPU); });
}

TEST(RowOperationsTest, RmsNormOfPieces) {
  with_every_row_kernel([] { testing::check_rms_norm_of_pieces(at::kCPU); });
}

TEST(RowOperationsTest, Rope) {
  with_every_row_kernel([] { testing::check_rope(at::kCPU); });
}

TEST(RowOperationsTest, Swiglu) {
  with_every_row_kernel([] { testing::check_swiglu(at::kCPU); });
}

TEST(RowOperationsTest, ExpertRows) {
  with_every_row_kernel([] { testing::check_expert_rows(at::kCPU); });
}

TEST(RowOperationsTest, CrossEntropy) {
  with_every_row_kernel([] { testing::check_cross_entropy(at::kCPU); });
}

TEST(RowOperationsTest, LabelOutsideTheVocabularyIsAnError) {
  with_every_row_kernel([] {
    const at::Tensor logits = at::randn({1, 3, 10}).to(at::kBFloat16);
    for (const int64_t label : {int64_t{10}, int64_t{-1}}) {
      EXPECT_ANY_THROW(cross_entropy_sum(logits, at::full({1, 3}, label, at::kLong)).item()) << label;
    }
    const at::Tensor nothing = cross_entropy_sum(logits, at::full({1, 3}, kIgnoreIndex, at::kLong));
    EXPECT_EQ(nothing.item<float>(), 0);
  });
}

}  // namespace
}  // namespace titan::nn
