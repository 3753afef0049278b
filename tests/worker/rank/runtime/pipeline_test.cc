// Tests that a pipeline trains exactly as one rank does, with every schedule.
#include "tests/worker/rank/runtime/training_world.h"

namespace titan::runtime {
namespace {

using testing::expect_same_bits;
using testing::expect_same_training;
using testing::RankOutcome;
using testing::train_world;
using testing::TrainingPlan;

// Eight layers allow eight stages. Norms, embedding and head are distributed over them.
TrainingPlan deep_plan() {
  TrainingPlan plan;
  plan.spec.dim = 16;
  plan.spec.n_layers = 8;
  plan.spec.n_heads = plan.spec.n_kv_heads = 2;
  plan.spec.ffn_hidden = 24;
  plan.global_batch = 8;
  plan.seq_len = 8;
  return plan;
}

RankOutcome plain_rank(TrainingPlan plan) {
  plan.sharding.ac.mode = "none";
  plan.sharding.reshard_after_forward = "default";
  plan.microbatches = 1;
  return train_world(plan, {}, 1)[0];
}

class ScheduleTest : public ::testing::TestWithParam<std::string> {};

// Compares loss, gradients, norm, weights and validation loss of three steps, on the ranks of two and of four stages.
TEST_P(ScheduleTest, TrainsAsOneRank) {
  TrainingPlan plan = deep_plan();
  plan.schedule = GetParam();
  plan.pipeline_microbatches = 8;
  const RankOutcome reference = plain_rank(plan);
  expect_same_training(reference, train_world(plan, {.pp = 2}, 2), testing::kExact);
  expect_same_training(reference, train_world(plan, {.pp = 4}, 4), testing::kExact);
}

// Blocks run again for their backward pass, and split backward passes must use the graph of the second run.
TEST_P(ScheduleTest, WithRecomputation) {
  TrainingPlan plan = deep_plan();
  plan.schedule = GetParam();
  plan.pipeline_microbatches = 8;
  plan.sharding.ac.mode = "full";
  expect_same_training(plain_rank(plan), train_world(plan, {.pp = 2}, 2), testing::kExact);
}

// A step consists of two runs of the schedule.
TEST_P(ScheduleTest, WithAccumulation) {
  TrainingPlan plan = deep_plan();
  plan.schedule = GetParam();
  plan.microbatches = 2;
  plan.pipeline_microbatches = 4;
  expect_same_training(plain_rank(plan), train_world(plan, {.pp = 2}, 2), testing::kExact);
}

// Combines the pipeline with FSDP, with weights gathered once per step or for every microbatch, and with replicas.
TEST_P(ScheduleTest, WithShardsAndReplicas) {
  TrainingPlan plan = deep_plan();
  plan.schedule = GetParam();
  plan.pipeline_microbatches = 4;
  const RankOutcome reference = plain_rank(plan);
  for (const char* policy : {"default", "always", "never"}) {
    plan.sharding.reshard_after_forward = policy;
    expect_same_training(reference, train_world(plan, {.pp = 2, .dp_shard = 2}, 4), testing::kExact);
  }
  for (const char* policy : {"default", "always"}) {
    plan.sharding.reshard_after_forward = policy;
    expect_same_training(reference, train_world(plan, {.pp = 2, .dp_replicate = 2, .dp_shard = 1}, 4), testing::kExact);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ScheduleTest,
                         ::testing::Values("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble",
                                           "ZBVZeroBubble", "DualPipeV"),
                         [](const auto& info) { return std::isdigit(info.param[0]) ? "OneFOneB" : info.param; });

// The halves of a pair alternate, each with its own collectives. Numbers and messages stay the same, over every
// transport.
TEST(PairTest, OverlapChangesNothing) {
  TrainingPlan plan = deep_plan();
  plan.schedule = "DualPipeV";
  plan.pipeline_microbatches = 8;
  plan.sharding.ac.mode = "full";
  const RankOutcome reference = plain_rank(plan);
  for (const auto via : {testing::Via::kMemory, testing::Via::kGloo, testing::Via::kSharedMemory}) {
    plan.overlap_pairs = false;
    const auto plain = train_world(plan, {.pp = 2, .tp = 2}, 4, via);
    plan.overlap_pairs = true;
    const auto overlapped = train_world(plan, {.pp = 2, .tp = 2}, 4, via);
    expect_same_training(reference, overlapped, testing::kExact);
    for (int rank = 0; rank < 4; ++rank) {
      expect_same_bits(plain[rank], overlapped[rank]);
      EXPECT_EQ(plain[rank].step_traffic, overlapped[rank].step_traffic);
    }
  }
}

// Weights are gathered and gradients reduced once per step, however many microbatches there are; "always" does it for
// each microbatch. One activation and one gradient per microbatch are sent between two ranks.
TEST(PipelineTrafficTest, EqualsClosedForm) {
  TrainingPlan plan = deep_plan();
  plan.pipeline_microbatches = 4;
  const int64_t message = plan.seq_len * plan.spec.dim * 8;
  const auto step = [&](const char* policy) {
    plan.sharding.reshard_after_forward = policy;
    return train_world(plan, {.pp = 2, .dp_shard = 2}, 4)[0].step_traffic;
  };
  const comm::LedgerCounts once = step("default");
  EXPECT_EQ(once.at("pp/send"), (comm::LedgerEntry{4, 4 * message}));
  EXPECT_EQ(once.at("pp/recv"), (comm::LedgerEntry{4, 4 * message}));
  const int64_t units = 5;  // On the first rank: embedding and four layers.
  EXPECT_EQ(once.at("fsdp/all_gather").calls, units);
  EXPECT_EQ(once.at("fsdp/reduce_scatter").calls, units);
  const comm::LedgerCounts always = step("always");
  EXPECT_EQ(always.at("fsdp/reduce_scatter").calls, 4 * units);
  EXPECT_EQ(always.at("fsdp/all_gather").calls, 4 * (2 * units - 1));  // The embedding's gradient reads no weights.
}

// The same run twice gives the same bits.
TEST(PipelineDeterminismTest, RepeatsBitForBit) {
  TrainingPlan plan = deep_plan();
  plan.schedule = "ZBVZeroBubble";
  plan.pipeline_microbatches = 4;
  plan.sharding.precision = {at::kFloat, at::kBFloat16, at::kFloat};
  for (const auto via : {testing::Via::kMemory, testing::Via::kGloo, testing::Via::kSharedMemory}) {
    const auto first = train_world(plan, {.pp = 2, .dp_shard = 2}, 4, via);
    const auto second = train_world(plan, {.pp = 2, .dp_shard = 2}, 4, via);
    for (int rank = 0; rank < 4; ++rank) expect_same_bits(first[rank], second[rank]);
  }
}

}  // namespace
}  // namespace titan::runtime
