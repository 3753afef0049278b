// Tests QK-clip through the engine: which heads are scaled, and by how much, does not depend on how the heads are split
// over the ranks.

#include "tests/worker/rank/runtime/latent_experts.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/runtime/step/optimizer_setup.h"

namespace titan::runtime {
namespace {

using testing::RankOutcome;
using testing::train_world;
using testing::TrainingPlan;

TrainingPlan with_clip(TrainingPlan plan, double tau) {
  plan.steps = 4;
  plan.qk_clip = tau;
  plan.make_optimizer = [](ShardedModel& model, testing::ThreadRank& self) {
    config::JobConfig config;
    config.optimizer.name = "Muon";
    config.optimizer.lr = 1;
    const config::UpdateRules rules = update_rules_of(config.optimizer, model).value();
    return build_optimizer(config, rules, model, *self.mesh, *self.device);
  };
  return plan;
}

// Expects every step to clip some heads, and at least one step to leave some unclipped.
void expect_clipping(const RankOutcome& one, const TrainingPlan& plan) {
  bool some = false;
  for (const auto& step : one.logits) {
    EXPECT_GT(step.largest, plan.qk_clip);
    EXPECT_GE(step.clipped, 1);
    some |= step.clipped < plan.spec.n_layers * plan.spec.n_heads;
  }
  EXPECT_TRUE(some) << "no head was left unclipped";
}

void expect_as_one_rank(const TrainingPlan& plan, const std::vector<std::pair<mesh::Degrees, int>>& meshes) {
  const RankOutcome one = train_world(plan, {}, 1)[0];
  expect_clipping(one, plan);
  for (const auto& [degrees, world] : meshes) {
    SCOPED_TRACE(::testing::Message() << "pp " << degrees.pp << " rep " << degrees.dp_replicate << " shard "
                                      << degrees.dp_shard << " cp " << degrees.cp << " tp " << degrees.tp << " ep "
                                      << degrees.ep);
    const std::vector<RankOutcome> ranks = train_world(plan, degrees, world);
    testing::expect_same_training(one, ranks, testing::kExact);
    for (const RankOutcome& rank : ranks) {
      for (size_t step = 0; step < one.logits.size(); ++step) {
        EXPECT_NEAR(rank.logits[step].largest, one.logits[step].largest, testing::kExact) << step;
        EXPECT_EQ(rank.logits[step].clipped, one.logits[step].clipped) << step;
      }
    }
  }
}

TEST(QkClipMeshTest, SharedKeyHeads) {
  TrainingPlan plan = with_clip({}, 0.05);
  plan.spec.ffn_hidden = 48;
  plan.spec.n_layers = 4;
  plan.document_end = 5;
  expect_as_one_rank(plan, {{{.dp_shard = 2}, 2},
                            {{.dp_shard = 4}, 4},
                            {{.dp_replicate = 2, .dp_shard = 2}, 4},
                            {{.cp = 2}, 2},
                            {{.tp = 2}, 2},
                            {{.dp_shard = 2, .tp = 2}, 4},
                            {{.pp = 2, .tp = 2}, 4}});
  plan.parallel.rotate_method = "alltoall";
  expect_as_one_rank(plan, {{{.dp_shard = 2, .cp = 2}, 4}});
}

// There are two ways to recompute, two microbatches per step, and a schedule that splits backward passes. Each logit
// counts once, and is recorded even if a saved activation makes its recomputation unnecessary.
TEST(QkClipMeshTest, PlainHeadsWithAccumulationAndRecomputation) {
  TrainingPlan plan = with_clip({}, 0.05);
  plan.spec.n_kv_heads = 4;
  plan.spec.n_layers = 4;
  plan.global_batch = 8;
  const RankOutcome one = train_world(plan, {}, 1)[0];
  expect_clipping(one, plan);
  plan.microbatches = 2;
  plan.schedule = "ZBVZeroBubble";
  for (const char* mode : {"full", "selective"}) {
    plan.sharding.ac.mode = mode;
    plan.sharding.ac.selective_ac_option = "op";
    testing::expect_same_training(one, train_world(plan, {.pp = 2}, 2), testing::kExact);
    testing::expect_same_training(one, train_world(plan, {.dp_shard = 2}, 2), testing::kExact);
  }
  plan.sharding.cpu_offload = true;
  testing::expect_same_training(one, train_world(plan, {.dp_shard = 2}, 2), testing::kExact);
}

TEST(QkClipMeshTest, LatentHeads) {
  TrainingPlan plan;
  plan.spec = testing::small_latent_experts();
  plan.spec.q_lora_rank = 9;
  expect_as_one_rank(with_clip(plan, 0.01), {{{.dp_shard = 2}, 2},
                                             {{.dp_shard = 2, .ep = 2}, 2},
                                             {{.cp = 2}, 2},
                                             {{.tp = 2}, 2},
                                             {{.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 4},
                                             {{.pp = 2, .dp_shard = 2}, 4}});
}

// A limit that no logit reaches changes no bit.
TEST(QkClipMeshTest, AHighBoundChangesNothing) {
  TrainingPlan plan = with_clip({}, 1e9);
  const std::vector<RankOutcome> bound = train_world(plan, {.dp_shard = 2}, 2);
  EXPECT_EQ(bound[0].logits.back().clipped, 0);
  plan.qk_clip = 0;
  const std::vector<RankOutcome> off = train_world(plan, {.dp_shard = 2}, 2);
  for (int rank = 0; rank < 2; ++rank) testing::expect_same_bits(bound[rank], off[rank]);
}

// Each step takes one maximum over the ranks of a stage, with 8 bytes per head.
TEST(QkClipMeshTest, ExchangesOneMaximum) {
  TrainingPlan plan = with_clip({}, 1);
  testing::run_ranks({.dp_shard = 2, .tp = 2}, 4, testing::every_axis(), [&](testing::ThreadRank& self) {
    plan.spec.ffn_hidden = 48;
    testing::RankModel model = testing::build_rank(plan, self);
    auto clip = parallel::QkClip::create(model.sharded->blocks(), model.sharded->parameters(), 1, *self.mesh, at::kCPU);
    ASSERT_TRUE(clip.ok()) << clip.status();
    const comm::LedgerCounts before = self.ledger.counts();
    (*clip)->finish_step();
    int64_t calls = 0, bytes = 0;
    for (const auto& [key, entry] : comm::subtract(self.ledger.counts(), before)) {
      calls += entry.calls;
      bytes += entry.bytes;
    }
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(bytes, 8 * plan.spec.n_layers * plan.spec.n_heads);
  });
}

}  // namespace
}  // namespace titan::runtime
