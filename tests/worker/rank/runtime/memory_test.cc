#include <algorithm>

#include "tests/testing/allocation_meter.h"
#include "tests/worker/rank/runtime/training_world.h"

namespace titan::runtime {
namespace {

struct Peaks {
  int64_t evaluate = 0;
  int64_t train = 0;
};

// Returns the bytes above the resting state (shards and their gradients) at the peak of a pass, on the rank with the
// most.
Peaks measure(testing::TrainingPlan plan, int world, const mesh::Degrees& degrees = {}) {
  std::vector<testing::AllocationMeter> meters(world);
  std::vector<Peaks> peaks(world);
  testing::run_ranks(degrees, world, testing::every_axis(), [&](testing::ThreadRank& self) {
    testing::AllocationMeter& meter = meters[self.rank];
    const testing::AllocationMeter::Scope scope(meter);
    {
      testing::RankModel model = testing::build_rank(plan, self);
      model.sharded->init_weights(1);
      const auto contexts = testing::microbatches_of_run(plan, *self.mesh, 0, 0, 1, 1);
      const pipeline::Schedule forward = pipeline::forward_only(model.schedule, 1);
      for (int repeat = 0; repeat < 2; ++repeat) {  // The first pass may fill caches.
        int64_t rest = meter.begin();
        model.executor->run(forward, contexts);
        model.sharded->release();
        peaks[self.rank].evaluate = meter.highest() - rest;
        rest = meter.begin();
        model.sharded->reset_gradients();
        model.executor->run(model.schedule, contexts, [] { return at::scalar_tensor(8, at::kLong); });
        model.sharded->finish_step();
        peaks[self.rank].train = meter.highest() - rest;
        EXPECT_LE(meter.begin() - rest, 4096) << "a pass left memory behind";
      }
    }
  });
  Peaks highest;
  for (const Peaks& one : peaks) {
    highest.evaluate = std::max(highest.evaluate, one.evaluate);
    highest.train = std::max(highest.train, one.train);
  }
  return highest;
}

// With resharding, gathered weights never take more space than two consecutive blocks. The backward pass adds the
// block's own gradients and the reduction of the block above: pieces sent, pieces received, and their sum (half a block
// on two ranks). A rank that gathers nothing shows how much activations and one block's gradients take. Gathering
// everything would take 12 blocks.
TEST(MemoryTest, AtMostTwoConsecutiveBlocksAreGathered) {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 12;
  plan.spec.dim = 256;
  plan.spec.ffn_hidden = 768;
  plan.spec.head_dim = plan.spec.v_head_dim = 64;
  plan.spec.vocab_size = 64;
  plan.seq_len = 8;
  plan.global_batch = 2;
  int64_t layer = 0;
  const model::Model model = model::build(plan.spec, {.seq_len = 8}).value();
  for (const auto& parameter : model.blocks[1]->parameters()) {
    layer += parameter.shape[0] * (parameter.shape.size() > 1 ? parameter.shape[1] : 1) * 4;
  }
  for (const char* policy : {"always", "default"}) {
    for (const char* recompute : {"none", "full"}) {
      plan.sharding = {.precision = {at::kFloat, at::kFloat, at::kFloat},
                       .reshard_after_forward = policy,
                       .ac = {.mode = recompute}};
      const Peaks whole = measure(plan, 1);
      const Peaks split = measure(plan, 2);
      EXPECT_LE(split.evaluate, whole.evaluate + 2 * layer) << policy << " " << recompute;
      EXPECT_GE(split.evaluate, layer) << "the meter sees nothing";
      EXPECT_LE(split.train, whole.train + 4 * layer + layer / 2) << policy << " " << recompute;
    }
  }
  plan.sharding.reshard_after_forward = "never";
  EXPECT_GE(measure(plan, 2).train, 12 * layer) << "the test would not notice a model that is gathered whole";
}

// If the head is far larger than a layer, its matrix is not held twice when it leaves a gather buffer.
TEST(MemoryTest, LargeHeadIsGatheredOnce) {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 4;
  plan.spec.vocab_size = 4099;  // Uneven; the last rank's piece is padded.
  plan.seq_len = 2;
  plan.global_batch = 2;
  plan.sharding = {.precision = {at::kFloat, at::kFloat, at::kFloat}};
  int64_t layer = 0;
  const model::Model model = model::build(plan.spec, {.seq_len = 2}).value();
  for (const auto& parameter : model.blocks[1]->parameters()) {
    layer += parameter.shape[0] * (parameter.shape.size() > 1 ? parameter.shape[1] : 1) * 4;
  }
  const int64_t head = (4100 * plan.spec.dim + plan.spec.dim) * 4;
  for (const char* policy : {"always", "default"}) {
    plan.sharding.reshard_after_forward = policy;
    const Peaks split = measure(plan, 2);
    EXPECT_LE(split.evaluate, measure(plan, 1).evaluate + layer + head) << policy;
    EXPECT_GE(split.evaluate, head) << "the meter sees nothing";
  }
}

// Recomputation saves a block's input instead of its activations.
TEST(MemoryTest, RecomputationSavesActivations) {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 8;
  plan.seq_len = 64;
  plan.global_batch = 1;
  plan.sharding.ac.mode = "none";
  const int64_t none = measure(plan, 1).train;
  plan.sharding.ac.mode = "selective";
  plan.sharding.ac.selective_ac_option = "2";
  const int64_t half = measure(plan, 1).train;
  plan.sharding.ac.mode = "full";
  const int64_t full = measure(plan, 1).train;
  EXPECT_LT(half, none * 3 / 4);
  EXPECT_LT(full, none / 2);
}

// Context parallelism splits all activations. Besides its own keys and values, a rank holds those of one other rank.
TEST(MemoryTest, ContextParallelismDividesActivations) {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 4;
  plan.seq_len = 2048;
  plan.global_batch = 1;
  plan.sharding = {.precision = {at::kFloat, at::kFloat, at::kFloat}};
  plan.parallel.rotate_method = "alltoall";
  const int64_t whole = measure(plan, 1).train;
  for (int ranks : {2, 4}) {
    const int64_t share = measure(plan, ranks, {.dp_shard = 1, .cp = ranks}).train;
    EXPECT_LE(share * ranks, whole * 115 / 100) << ranks << " ranks";
    std::printf("context parallel on %d ranks: peak activations %.3f of one rank's / %d\n", ranks,
                static_cast<double>(share * ranks) / static_cast<double>(whole), ranks);
  }
}

}  // namespace
}  // namespace titan::runtime
