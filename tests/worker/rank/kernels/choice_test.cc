#include "worker/rank/kernels/choice.h"

#include <gtest/gtest.h>

#include "tests/worker/rank/kernels/simulated_kernels.h"

namespace titan::kernels {
namespace {

TEST(ChoiceTest, NothingIsChosenByDefault) { EXPECT_EQ(chosen_level(), std::nullopt); }

TEST(ChoiceTest, ChoosesOnlyLevelsOfThisMachine) {
  for (const Level level : {Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16, Level::kAmx}) {
    ASSERT_TRUE(choose("reference"));
    const bool here = best_level() && level <= *best_level();
    EXPECT_EQ(choose(name(level)), here) << name(level);
    EXPECT_EQ(chosen_level(), here ? std::optional<Level>(level) : std::nullopt) << name(level);
  }
  EXPECT_FALSE(choose("avx3"));
  EXPECT_TRUE(choose("reference"));
  EXPECT_EQ(chosen_level(), std::nullopt);
}

TEST(ChoiceTest, AutoChoosesTheBestLevel) {
  ASSERT_TRUE(choose("auto"));
  EXPECT_EQ(chosen_level(), best_level());
  choose("reference");
}

TEST(ChoiceTest, DeviceKernelsComputeTheNamedParts) {
  const testing::SimulatedKernels kernels;
  for (const DeviceParts& parts :
       {DeviceParts{true, false}, {false, true}, {true, true}, {false, false, true}, {false, false}}) {
    choose_on_device(&kernels, parts);
    EXPECT_EQ(chosen_on_device(TrainingPart::kModel), parts.model ? &kernels : nullptr);
    EXPECT_EQ(chosen_on_device(TrainingPart::kLoss), parts.loss ? &kernels : nullptr);
    EXPECT_EQ(chosen_on_device(TrainingPart::kOptimizer), parts.optimizer ? &kernels : nullptr);
  }
  choose_on_device(nullptr, {true, true});  // A device without kernels.
  EXPECT_EQ(chosen_on_device(TrainingPart::kModel), nullptr);
  EXPECT_EQ(cuda_kernels(), nullptr) << "libtitan_cuda.so is not loaded";
}

}  // namespace
}  // namespace titan::kernels
