#include "worker/rank/kernels/level.h"

#include <gtest/gtest.h>

namespace titan::kernels {
namespace {

TEST(LevelTest, NamesParseBackToTheirLevel) {
  for (const Level level : {Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16, Level::kAmx})
    EXPECT_EQ(level_named(name(level)), level);
  EXPECT_EQ(level_named("AVX2"), std::nullopt);
  EXPECT_EQ(level_named(""), std::nullopt);
}

TEST(LevelTest, StaysTheSameForTheProcess) { EXPECT_EQ(best_level(), best_level()); }

}  // namespace
}  // namespace titan::kernels
