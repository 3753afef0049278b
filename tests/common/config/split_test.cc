// Whether a mesh takes a batch size: what a job asks that goes on under another mesh.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/mesh.h"
#include "common/models/registry.h"

namespace titan::config {
namespace {

using ::testing::HasSubstr;

// The error; empty when it fits.
std::string split(const std::string& model, const Parallelism& parallelism, int ranks, std::int64_t local_batch) {
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
  Parallelism staged;
  staged.pipeline_parallel_degree = 2;
  staged.pipeline_parallel_microbatch_size = 2;
  EXPECT_EQ(split("llama3", staged, 2, 6), "");
  EXPECT_THAT(split("llama3", staged, 2, 3), HasSubstr("2 does not divide training.local_batch_size 3"));
  staged.pipeline_parallel_schedule = "DualPipeV";
  EXPECT_EQ(split("llama3", staged, 2, 8), "");
  EXPECT_THAT(split("llama3", staged, 2, 6), HasSubstr("DualPipeV needs as many microbatches as stages (4)"));
}

// Without sequence parallelism, tensor ranks that route tokens of their own share the rows' tokens out.
TEST(SplitTest, TensorRanksShareTheTokensOfABatch) {
  Parallelism lent;
  lent.tensor_parallel_degree = 2;
  lent.expert_parallel_degree = 2;
  EXPECT_EQ(split("deepseek_v3", lent, 2, 4), "");
  EXPECT_THAT(split("deepseek_v3", lent, 2, 3), HasSubstr("189 tokens, which do not divide"));
}

}  // namespace
}  // namespace titan::config
