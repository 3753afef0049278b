#include "worker/kernels/choice.h"

#include <gtest/gtest.h>

namespace titan::kernels {
namespace {

TEST(ChoiceTest, NothingIsChosenUnasked) { EXPECT_EQ(chosen_level(), std::nullopt); }

TEST(ChoiceTest, ALevelIsTakenWhereThereIsOne) {
  for (const Level level : {Level::kAvx2, Level::kAvx512, Level::kAmx}) {
    ASSERT_TRUE(choose("reference"));
    const bool here = best_level() && level <= *best_level();
    EXPECT_EQ(choose(name(level)), here) << name(level);
    EXPECT_EQ(chosen_level(), here ? std::optional<Level>(level) : std::nullopt) << name(level);
  }
  EXPECT_FALSE(choose("avx3"));
  EXPECT_TRUE(choose("reference"));
  EXPECT_EQ(chosen_level(), std::nullopt);
}

TEST(ChoiceTest, AutoTakesTheBestOfTheMachine) {
  ASSERT_TRUE(choose("auto"));
  EXPECT_EQ(chosen_level(), best_level());
  choose("reference");
}

}  // namespace
}  // namespace titan::kernels
