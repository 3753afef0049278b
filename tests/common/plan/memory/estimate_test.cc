// Peaks that are estimated without a dry run; tests/worker/rank/runtime/memory_estimate_test.cc compares them with dry
// runs.

#include "common/plan/memory/estimate.h"

#include <gtest/gtest.h>

#include "common/plan/config/validate.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/sizes.h"

namespace titan::memory {
namespace {

config::JobConfig job(int ranks) {
  config::JobConfig config;
  config.resources.ranks = ranks;
  config.training.local_batch_size = 8;
  EXPECT_TRUE(config::check(config).empty());
  config::resolve(config);
  return config;
}

TEST(EstimateTest, OneRankHoldsFourNumbersAParameter) {
  const std::optional<Estimate> estimate = peak_memory(job(1));
  ASSERT_TRUE(estimate.has_value());
  const int64_t shard = 4 * models::parameter_count(models::find("llama3", "debugmodel").value());
  EXPECT_EQ(estimate->peak.optimizer, 2 * shard);
  EXPECT_GE(estimate->peak.gradients, shard);
  EXPECT_GE(estimate->peak.weights, shard);
  EXPECT_GT(estimate->peak.activations, 0);
  EXPECT_EQ(estimate->host, 0);
}

TEST(EstimateTest, OffloadedShardsAreOnTheHost) {
  config::JobConfig config = job(4);
  config.training.enable_cpu_offload = true;
  const std::optional<Estimate> estimate = peak_memory(config);
  ASSERT_TRUE(estimate.has_value());
  EXPECT_EQ(estimate->peak.optimizer, 0);
  EXPECT_EQ(estimate->host, 2 * peak_memory(job(4))->peak.optimizer);
}

// The last stage has the head, and its logits outweigh a layer.
TEST(EstimateTest, PeakIsThatOfTheFullestStage) {
  config::JobConfig config = job(2);
  config.parallelism.pipeline_parallel_degree = 2;
  config.parallelism.data_parallel_shard_degree = 1;
  config.model.flavor = "8B";
  config.activation_checkpoint.mode = "full";
  ASSERT_TRUE(config::check(config).empty());
  EXPECT_EQ(peak_memory(config)->pipeline, 1);
}

config::JobConfig vision_job(int64_t images) {
  config::JobConfig config = job(1);
  config.model.name = "vlm";
  config.training.dataset = "cc12m";
  config.data.max_images_per_batch = images;
  EXPECT_TRUE(config::check(config).empty());
  return config;
}

// Weights of the tower are among the parameters, and its activations follow the limits of images up to the length of
// rows, of which images take the places of tokens.
TEST(EstimateTest, VisionTowersCount) {
  const std::optional<Estimate> few = peak_memory(vision_job(8)), many = peak_memory(vision_job(64));
  ASSERT_TRUE(few.has_value());
  const int64_t shard = 4 * models::parameter_count(models::find("vlm", "debugmodel").value());
  EXPECT_EQ(few->peak.optimizer, 2 * shard);
  EXPECT_GT(many->peak.activations, few->peak.activations);
  EXPECT_EQ(peak_memory(vision_job(8 * 2048))->peak.total(), peak_memory(vision_job(16 * 2048))->peak.total());
}

// Four patches share a token, so a row of images has four times as many patches, up to the limit of an image.
TEST(EstimateTest, MergedImagesCount) {
  const auto peak = [](int64_t images, int64_t patches) {
    config::JobConfig config = job(1);
    config.model.name = "qwen3_vl";
    config.training.dataset = "shapes";
    config.data.spatial_merge_size = 2;
    config.data.max_images_per_batch = images;
    config.data.max_patches_per_image = patches;
    EXPECT_TRUE(config::check(config).empty());
    return peak_memory(config)->peak;
  };
  const Parts few = peak(8, 256), many = peak(64, 256), large = peak(8, 4 * 2048);
  EXPECT_EQ(few.optimizer, 8 * models::parameter_count(models::find("qwen3_vl", "debugmodel").value()));
  EXPECT_GT(many.activations, few.activations);
  EXPECT_GT(large.activations, few.activations);
  EXPECT_EQ(large.total(), peak(8, 8 * 2048).total());
}

TEST(EstimateTest, UnknownModelsAndSchedulesAreNotEstimated) {
  config::JobConfig config = job(1);
  const int64_t own = peak_memory(config)->peak.total();
  config.experimental.custom_import = "/models/own.so";
  // The library may have only datasets, and it cannot have a model under a name that is taken.
  EXPECT_EQ(peak_memory(config)->peak.total(), own);
  config.model.name = "mine";
  EXPECT_FALSE(peak_memory(config).has_value());
  config = job(2);
  config.parallelism.pipeline_parallel_degree = 2;
  config.parallelism.pipeline_parallel_schedule_csv = "/schedules/own.csv";
  EXPECT_FALSE(peak_memory(config).has_value());
}

}  // namespace
}  // namespace titan::memory
