// Tests the numbers of Qwen3-VL.
#include "common/plan/models/qwen3_vl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/plan/models/qwen3_vl_sizes.h"

namespace titan::models {
namespace {

// The released weights have these numbers, and so has transformers' class.
TEST(Qwen3VlSizesTest, HaveTheReleasedNumbersOfParameters) {
  struct Count {
    std::string flavor;
    int64_t all, tower;
    size_t tensors;
  };
  const std::vector<Count> released = {
      {"2B", 2127532032, 406957056, 625}, {"4B", 4437815808, 415347712, 713}, {"8B", 8767123696, 576388336, 750}};
  const std::vector<Qwen3VlSize> sizes = qwen3_vl_sizes();
  for (const Qwen3VlSize& size : sizes) EXPECT_EQ(inconsistency(size.text, size.vl), "") << size.text.flavor;
  for (const Count& want : released) {
    const auto size =
        std::find_if(sizes.begin(), sizes.end(), [&](const auto& one) { return one.text.flavor == want.flavor; });
    ASSERT_NE(size, sizes.end()) << want.flavor;
    int64_t tower = 0, text = 0;
    for (const ParameterSpec& tensor : parameters(size->vl.vision)) tower += tensor.numel();
    for (const ParameterSpec& tensor : parameters(size->text)) text += tensor.numel();
    EXPECT_EQ(tower, want.tower);
    EXPECT_EQ(tower + text, want.all);
    EXPECT_EQ(parameters(size->vl.vision).size() + parameters(size->text).size(), want.tensors);
  }
}

// The released sections spread rows and columns over the fast and middle pairs, and leave the slow ones to time.
TEST(Qwen3VlSizesTest, PairsTurnByTimeRowAndColumnAlternating) {
  const Qwen3VlSize size = qwen3_vl_sizes().back();
  const std::vector<int64_t> axes = mrope_axes(size.text, size.vl);
  ASSERT_EQ(axes.size(), 64u);
  for (size_t pair = 0; pair < 60; ++pair) EXPECT_EQ(axes[pair], static_cast<int64_t>(pair % 3));
  for (size_t pair = 60; pair < 64; ++pair) EXPECT_EQ(axes[pair], 0);
}

}  // namespace
}  // namespace titan::models
