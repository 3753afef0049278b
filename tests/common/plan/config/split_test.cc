// Whether a mesh can split a batch; a job that resumes on another mesh depends on it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/config/parallelism.h"
#include "common/plan/models/registry.h"

namespace titan::config {
namespace {

using ::testing::HasSubstr;

// Returns the error, or "" if the batch can be split.
std::string split(const std::string& model, const ParallelismSection& parallelism, int ranks,
                  std::int64_t local_batch) {
  JobConfig config;
  config.model.name = model;
  config.model.flavor = "debugmodel";
  config.parallelism = parallelism;
  config.training.local_batch_size = local_batch;
  config.training.seq_len = 63;
  config.parallelism.enable_sequence_parallel = false;
  const auto mesh = mesh::Mesh::create(degrees_of(parallelism), ranks);
  return std::string(check_split(config, models::find(model, "debugmodel").value(), mesh.value()).message());
}

TEST(SplitTest, PipelinesTakeWholeMicrobatchesAndEnoughOfThem) {
  ParallelismSection staged;
  staged.pipeline_parallel_degree = 2;
  staged.pipeline_parallel_microbatch_size = 2;
  EXPECT_EQ(split("llama3", staged, 2, 6), "");
  EXPECT_THAT(split("llama3", staged, 2, 3), HasSubstr("2 does not divide training.local_batch_size 3"));
  staged.pipeline_parallel_schedule = "DualPipeV";
  EXPECT_EQ(split("llama3", staged, 2, 8), "");
  EXPECT_THAT(split("llama3", staged, 2, 6), HasSubstr("DualPipeV needs at least as many microbatches as stages (4)"));
}

// Without sequence parallelism, tensor ranks that route their own tokens split the tokens of a row.
TEST(SplitTest, TensorRanksSplitTheTokensOfABatch) {
  ParallelismSection lent;
  lent.tensor_parallel_degree = 2;
  lent.expert_parallel_degree = 2;
  EXPECT_EQ(split("deepseek_v3", lent, 2, 4), "");
  EXPECT_THAT(split("deepseek_v3", lent, 2, 3), HasSubstr("189 tokens, which do not divide"));
}

// FSDP splits rows: with more ranks than rows, gathered tensors are mostly padding.
TEST(SplitTest, MoreShardsThanRowsWarn) {
  JobConfig config;
  config.model.name = "llama3";
  config.model.flavor = "8B";
  config.resources.ranks = 1024;
  EXPECT_TRUE(shard_warnings(config).empty());
  config.resources.ranks = 8192;
  ASSERT_EQ(shard_warnings(config).size(), 1u);
  EXPECT_THAT(shard_warnings(config)[0],
              HasSubstr("8192 ranks share one copy, and 225 tensors have fewer rows: with the "
                        "padding each gather is 1.7 times as large"));
  config.parallelism.data_parallel_replicate_degree = 8;
  EXPECT_TRUE(shard_warnings(config).empty());
  // All tensors have as many rows as there are ranks, and still padding doubles most of them.
  config.model.flavor = "debugmodel";
  config.resources.ranks = 255;
  config.parallelism.data_parallel_replicate_degree = 1;
  ASSERT_EQ(shard_warnings(config).size(), 1u);
  EXPECT_THAT(shard_warnings(config)[0], HasSubstr("255 ranks share one copy: with the padding each gather is "));
  config.model.name = "somebodys";
  EXPECT_TRUE(shard_warnings(config).empty()) << "a library's model is unknown to the planner";
}

}  // namespace
}  // namespace titan::config
