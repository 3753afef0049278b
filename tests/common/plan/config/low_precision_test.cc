#include "common/plan/config/low_precision.h"

#include <gtest/gtest.h>

#include "common/plan/config/load.h"
#include "common/plan/config/validate.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/sizes.h"

namespace titan::config {
namespace {

using Shape = std::vector<std::int64_t>;

JobConfig with(const std::string& converter) {
  JobConfig config;
  config.model.converters = {converter};
  return config;
}

// Layers are chosen by name and by the sizes that the kernels support; without a converter nothing is converted.
TEST(LowPrecisionTest, LinearLayersAreChosenByNameAndSize) {
  JobConfig config = with("quantize.linear.float8");
  config.quantize.linear.float8.filter_fqns = {"output", "router.gate"};
  const std::string wq = "layers.0.attention.wq.weight";
  EXPECT_EQ(low_precision_of(JobConfig(), wq, {64, 64}), std::nullopt);
  EXPECT_EQ(low_precision_of(config, wq, {64, 64}), LowPrecision::kFloat8Tensorwise);
  EXPECT_EQ(low_precision_of(config, wq, {64, 48}), LowPrecision::kFloat8Tensorwise);
  EXPECT_EQ(low_precision_of(config, wq, {64, 40}), std::nullopt);
  EXPECT_EQ(low_precision_of(config, "output.weight", {64, 64}), std::nullopt);
  EXPECT_EQ(low_precision_of(config, "layers.1.moe.router.gate.weight", {64, 64}), std::nullopt);
  EXPECT_EQ(low_precision_of(config, "layers.1.moe.shared_experts.w1.weight", {64, 64}),
            LowPrecision::kFloat8Tensorwise);
  // These tensors are not the weight of a matrix product.
  EXPECT_EQ(low_precision_of(config, "tok_embeddings.weight", {64, 64}), std::nullopt);
  EXPECT_EQ(low_precision_of(config, "layers.0.attention_norm.weight", {64}), std::nullopt);
  EXPECT_EQ(low_precision_of(config, "layers.1.moe.experts.mlp1_bias", {64, 64}), std::nullopt);

  config.quantize.linear.float8.recipe_name = "rowwise";
  EXPECT_EQ(low_precision_of(config, wq, {64, 64}), LowPrecision::kFloat8Rowwise);
  config.quantize.linear.float8.recipe_name = "rowwise_with_gw_hp";
  EXPECT_EQ(low_precision_of(config, wq, {64, 64}), LowPrecision::kFloat8RowwiseGwHp);

  const JobConfig mx = with("quantize.linear.mx");
  EXPECT_EQ(low_precision_of(mx, wq, {64, 64}), LowPrecision::kMxfp8);
  EXPECT_EQ(low_precision_of(mx, wq, {64, 48}), std::nullopt);               // A row is not whole blocks of 32.
  EXPECT_EQ(low_precision_of(mx, "output.weight", {64, 64}), std::nullopt);  // Excluded by the default filter.
}

// auto_filter_small_kn leaves out layers that gain nothing at their size, according to torchao's table for the recipe.
TEST(LowPrecisionTest, SmallLayersAreLeftOut) {
  JobConfig config = with("quantize.linear.float8");
  config.quantize.linear.float8.filter_fqns = {"auto_filter_small_kn", "wk"};
  const auto taken = [&](std::int64_t n, std::int64_t k) {
    return low_precision_of(config, "layers.0.attention.wq.weight", Shape{n, k}).has_value();
  };
  EXPECT_FALSE(taken(1024, 4096));
  EXPECT_TRUE(taken(1024, 4112));
  EXPECT_TRUE(taken(1040, 4096));
  EXPECT_FALSE(low_precision_of(config, "layers.0.attention.wk.weight", {4096, 8192}).has_value());
  config.quantize.linear.float8.recipe_name = "rowwise";
  EXPECT_FALSE(taken(2048, 8192));
  EXPECT_FALSE(taken(8192, 1024));
  EXPECT_FALSE(taken(4096, 2048));
  EXPECT_TRUE(taken(4096, 2064));
  EXPECT_TRUE(taken(4112, 1040));
}

TEST(LowPrecisionTest, ExpertsAreChosenByName) {
  JobConfig config = with("quantize.grouped_mm.float8");
  config.quantize.grouped_mm.float8.fqns = {"layers.1.moe.experts"};
  EXPECT_EQ(low_precision_of(config, "layers.1.moe.experts.w1", {8, 64, 64}), LowPrecision::kFloat8Rowwise);
  EXPECT_EQ(low_precision_of(config, "layers.2.moe.experts.w1", {8, 64, 64}), std::nullopt);
  EXPECT_EQ(low_precision_of(config, "layers.1.attention.wq.weight", {64, 64}), std::nullopt);
  config = with("quantize.grouped_mm.mx");
  config.quantize.grouped_mm.mx.fqns = {"experts"};
  EXPECT_EQ(low_precision_of(config, "layers.1.moe.experts.mlp1_weight", {8, 64, 64}), LowPrecision::kMxfp8);
  models::ModelSpec spec = *models::find("deepseek_v3", "debugmodel");
  EXPECT_EQ(unfit_experts(config, spec), "");
  spec.moe->hidden += 16;
  EXPECT_EQ(unfit_experts(config, spec).rfind("layers.1.moe.experts.w1 has matrices of ", 0), 0U)
      << unfit_experts(config, spec);
}

// Only a weight with a single scale can be gathered together with its scale.
TEST(LowPrecisionTest, OnlyTensorwiseWeightsAreGatheredAsFloat8) {
  JobConfig config = with("quantize.linear.float8");
  config.quantize.linear.float8.enable_fsdp_float8_all_gather = true;
  EXPECT_TRUE(gathered_as_float8(config, "output.weight", {64, 64}));
  EXPECT_FALSE(gathered_as_float8(config, "norm.weight", {64}));
  EXPECT_FALSE(gathered_as_float8(config, "layers.1.moe.experts.w1", {8, 64, 64}));
  config.quantize.linear.float8.recipe_name = "rowwise";
  EXPECT_FALSE(gathered_as_float8(config, "output.weight", {64, 64}));
}

}  // namespace
}  // namespace titan::config
