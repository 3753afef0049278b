// Tests activation_checkpoint.layers: recomputing single layers changes no bit, repeats only those layers' work and
// frees their activations, on every rank of a pipeline by the indices of the whole model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/numerics/mesh_table/mesh_job.h"
#include "tests/numerics/mesh_table/rows.h"

namespace titan::testing {
namespace {

constexpr int64_t kLayers = 4;

std::vector<RankRecord> train(int pipeline, const std::string& mode, const std::vector<int64_t>& layers) {
  MeshJob job;
  job.spec = small_spec("llama3");
  job.spec.n_layers = kLayers;
  job.steps = 3;
  job.world = job.config.resources.ranks = pipeline;
  config::JobConfig& config = job.config;
  config.training.seq_len = 32;
  config.training.mixed_precision_param = "float32";
  config.training.local_batch_size = job.global_batch;
  config.parallelism.data_parallel_shard_degree = 1;
  config.parallelism.pipeline_parallel_degree = pipeline;
  config.activation_checkpoint.mode = mode;
  config.activation_checkpoint.layers = layers;
  return run_mesh_job(job);
}

int64_t peak_held(const RankRecord& rank) { return *std::max_element(rank.held.begin(), rank.held.end()); }

TEST(RecomputedLayersTest, RecomputationChangesNoBit) {
  const RankRecord none = train(1, "none", {})[0], all = train(1, "full", {})[0];
  const RankRecord two = train(1, "full", {0, 2})[0], one = train(1, "selective", {3})[0];
  const RankRecord every = train(1, "full", {0, 1, 2, 3})[0];
  for (const RankRecord* other : {&all, &two, &one, &every}) {
    EXPECT_EQ(none.losses, other->losses);
    EXPECT_EQ(none.norms, other->norms);
  }
  // Layers of one model cost the same.
  const int64_t again = all.product_flops - none.product_flops;
  ASSERT_GT(again, 0);
  EXPECT_EQ(two.product_flops, none.product_flops + again / 2);
  EXPECT_EQ(one.product_flops, none.product_flops + again / kLayers);
  EXPECT_EQ(every.product_flops, all.product_flops);
  EXPECT_LT(peak_held(all), peak_held(two));
  EXPECT_LT(peak_held(two), peak_held(one));
  EXPECT_LT(peak_held(one), peak_held(none));
}

TEST(RecomputedLayersTest, IndicesCountOverTheWholeModel) {
  const std::vector<RankRecord> none = train(2, "none", {}), last = train(2, "full", {3});
  EXPECT_EQ(none[0].losses, last[0].losses);
  EXPECT_EQ(none[0].product_flops, last[0].product_flops);
  EXPECT_LT(none[1].product_flops, last[1].product_flops);
}

}  // namespace
}  // namespace titan::testing
