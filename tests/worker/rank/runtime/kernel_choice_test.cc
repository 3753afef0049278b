#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::runtime {
namespace {

std::pair<bool, bool> model_and_loss(bool enable, std::vector<std::string> components, const std::string& kernels) {
  config::JobConfig config;
  config.compile.enable = enable;
  config.compile.components = std::move(components);
  config.resources.kernels = kernels;
  const kernels::DeviceParts parts = parts_on_gpu(config);
  return {parts.model, parts.loss};
}

// `compile` selects what GPU ranks compute with Titan's kernels, except that "reference" selects none.
TEST(KernelChoiceTest, CompileSelectsGpuKernelsUnlessReference) {
  EXPECT_EQ(model_and_loss(true, {"model", "loss"}, "auto"), std::pair(true, true));
  EXPECT_EQ(model_and_loss(true, {"model"}, "auto"), std::pair(true, false));
  EXPECT_EQ(model_and_loss(true, {"loss"}, "avx2"), std::pair(false, true));
  EXPECT_EQ(model_and_loss(true, {"model", "loss"}, "reference"), std::pair(false, false));
  EXPECT_EQ(model_and_loss(false, {"model", "loss"}, "auto"), std::pair(false, false));
}

// Whatever `compile` says, Titan's kernels compute steps whose states have fewer bits, as on CPUs.
TEST(KernelChoiceTest, OptimizerKernelsIgnoreCompile) {
  config::JobConfig config;
  EXPECT_TRUE(parts_on_gpu(config).optimizer);
  config.compile.enable = true;
  EXPECT_TRUE(parts_on_gpu(config).optimizer);
  config.resources.kernels = "reference";
  EXPECT_FALSE(parts_on_gpu(config).optimizer);
}

// If the model uses Titan's kernels, layers' passes are graphs unless graphs are turned off.
TEST(KernelChoiceTest, GraphsNeedTheModelsKernels) {
  config::JobConfig config;
  EXPECT_FALSE(graphs_on_gpu(config));
  config.compile.enable = true;
  EXPECT_TRUE(graphs_on_gpu(config));
  config.compile.graphs = "off";
  EXPECT_FALSE(graphs_on_gpu(config));
  config.compile = {.enable = true, .components = {"loss"}};
  EXPECT_FALSE(graphs_on_gpu(config));
}

}  // namespace
}  // namespace titan::runtime
