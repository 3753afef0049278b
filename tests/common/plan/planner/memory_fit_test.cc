// Whether a job fits into the nodes' memory, and the advice if it does not.

#include "common/plan/planner/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/text/quantities.h"
#include "common/plan/config/validate.h"
#include "common/plan/memory/estimate.h"

namespace titan::planner {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

config::JobConfig job(int ranks, const std::string& flavor = "8B") {
  config::JobConfig config;
  config.model.flavor = flavor;
  config.resources.device = "cuda";
  config.resources.ranks = ranks;
  config.activation_checkpoint.mode = "none";
  config.training.local_batch_size = 1;
  EXPECT_TRUE(config::check(config).empty());
  config::resolve(config);
  return config;
}

std::string misfit(const config::JobConfig& config, const std::vector<NodeMemory>& nodes) {
  return memory_misfit(config, nodes).value_or("");
}

TEST(MemoryFitTest, LargeNodeGivesNoMessage) { EXPECT_EQ(misfit(job(8), {{8, 80 * kGiB}}), ""); }

TEST(MemoryFitTest, UnknownMemoryIsAssumedEnough) {
  EXPECT_EQ(misfit(job(1), {}), "");
  EXPECT_EQ(misfit(job(1), {{8, 0}}), "");
  EXPECT_EQ(misfit(job(1), {{8, 0}, {8, 16 * kGiB}}), "");
}

// Weights, gradients and Adam's states of 8 billion parameters take 120 GiB on one rank, half of it on two.
TEST(MemoryFitTest, StatesAreShardedOverMoreRanks) {
  const std::string text = misfit(job(1), {{8, 80 * kGiB}});
  EXPECT_THAT(text, HasSubstr("optimizer 59.8 GiB"));
  EXPECT_THAT(text, HasSubstr("but the largest device has 80.0 GiB"));
  EXPECT_THAT(text, HasSubstr("set resources.ranks = 2, which takes about "));
}

TEST(MemoryFitTest, SuggestsRecomputation) {
  config::JobConfig config = job(64);
  config.training.local_batch_size = 4;
  config.training.seq_len = 4096;
  config.training.global_batch_size = -1;
  config::resolve(config);
  EXPECT_THAT(misfit(config, {{64, 80 * kGiB}}), HasSubstr("set activation_checkpoint.mode = \"full\", which takes"));
}

TEST(MemoryFitTest, SuggestionMatchesTheEstimate) {
  config::JobConfig config = job(1);
  const std::string text = misfit(config, {{8, 80 * kGiB}});
  config.resources.ranks = 2;
  config.parallelism.data_parallel_shard_degree = config.training.global_batch_size = -1;
  config::resolve(config);
  const int64_t bytes = memory::peak_memory(config)->peak.total();
  EXPECT_LE(bytes, 80 * kGiB);
  EXPECT_THAT(text, HasSubstr("which takes about " + gibibytes(bytes)));
}

TEST(MemoryFitTest, SuggestsCombinedChanges) {
  config::JobConfig config = job(64);
  config.training.local_batch_size = 16;
  config.training.seq_len = 8192;
  config.training.global_batch_size = -1;
  config::resolve(config);
  EXPECT_THAT(misfit(config, {{64, 24 * kGiB}}),
              HasSubstr("set activation_checkpoint.mode = \"full\" and training.local_batch_size = "));
}

// The advice never exceeds the number of devices in the cluster.
TEST(MemoryFitTest, SuggestsNoMoreRanksThanDevices) {
  EXPECT_THAT(misfit(job(1), {{8, 24 * kGiB}}), HasSubstr("set resources.ranks = 8 and "));
  EXPECT_THAT(misfit(job(2), {{4, 24 * kGiB}}),
              HasSubstr("set training.enable_cpu_offload = true, which takes about "));
  const std::string text = misfit(job(2), {{4, 4 * kGiB}});
  EXPECT_THAT(text, HasSubstr("no change fits the job into the 4 devices of that size that exist"));
  EXPECT_THAT(text, HasSubstr("with enough more of them, set resources.ranks = "));
}

TEST(MemoryFitTest, NothingHelps) { EXPECT_THAT(misfit(job(8, "405B"), {{8, kGiB}}), HasSubstr("a smaller model")); }

// All devices with enough memory are counted, not only the largest.
TEST(MemoryFitTest, ReportsTooFewLargeNodes) {
  const std::string text = misfit(job(4), {{2, 80 * kGiB}, {8, 24 * kGiB}});
  EXPECT_THAT(text, HasSubstr("of 2 nodes only 1 has devices with that much: 2 for 4 ranks"));
  EXPECT_EQ(misfit(job(4), {{4, 80 * kGiB}, {8, 24 * kGiB}}), "");
}

// On CPUs, offloaded states stay in the same memory.
TEST(MemoryFitTest, OffloadedShardsAreInTheHostsMemory) {
  config::JobConfig config = job(1);
  config.training.enable_cpu_offload = true;
  EXPECT_EQ(misfit(config, {{8, 80 * kGiB}}), "");
  config.resources.device = "cpu";
  EXPECT_THAT(misfit(config, {{8, 80 * kGiB}}), HasSubstr("; offloaded 119.7 GiB"));
}

TEST(MemoryFitTest, RanksOfOneProcessShareADevice) {
  config::JobConfig config = job(8);
  config.comm.mode = "local_tensor";
  EXPECT_THAT(misfit(config, {{8, 80 * kGiB}}), HasSubstr("the process that runs all ranks takes about "));
  config.comm.mode = "fake_backend";
  EXPECT_EQ(misfit(config, {{8, kGiB}}), "");
}

TEST(MemoryFitTest, LibraryModelIsNotEstimated) {
  config::JobConfig config = job(1);
  config.experimental.custom_import = "/models/own.so";
  EXPECT_NE(misfit(config, {{8, kGiB}}), "");  // The model is Titan's.
  config.model.name = "mine";
  EXPECT_EQ(misfit(config, {{8, kGiB}}), "");
}

}  // namespace
}  // namespace titan::planner
