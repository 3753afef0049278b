// Tests Muon through the engine: it orthogonalizes whole matrices however they are split over the ranks.

#include "tests/worker/rank/runtime/latent_experts.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/runtime/step/optimizer_setup.h"

namespace titan::runtime {
namespace {

using testing::RankOutcome;
using testing::train_world;
using testing::TrainingPlan;

TrainingPlan with_muon(TrainingPlan plan) {
  plan.steps = 5;
  plan.make_optimizer = [](ShardedModel& model, testing::ThreadRank& self) {
    config::JobConfig config;
    config.optimizer.name = "Muon";
    config.optimizer.lr = 1;
    const config::UpdateRules rules = update_rules_of(config.optimizer, model).value();
    return build_optimizer(config, rules, model, *self.mesh, *self.device);
  };
  return plan;
}

TrainingPlan with_experts() {
  TrainingPlan plan;
  plan.spec = testing::small_latent_experts();
  return plan;
}

// Uses one learning rate for both kinds, so that a step moves every parameter, and expects the loss, gradients and
// weights of one rank.
void expect_as_one_rank(const TrainingPlan& plan, const std::vector<std::pair<mesh::Degrees, int>>& meshes) {
  const RankOutcome one = train_world(plan, {}, 1)[0];
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const auto& [degrees, world] : meshes) {
    SCOPED_TRACE(::testing::Message() << "pp " << degrees.pp << " rep " << degrees.dp_replicate << " shard "
                                      << degrees.dp_shard << " cp " << degrees.cp << " tp " << degrees.tp << " ep "
                                      << degrees.ep << " etp " << degrees.etp);
    testing::expect_same_training(one, train_world(plan, degrees, world), testing::kExact);
  }
}

// No mesh divides the rows evenly (ffn_hidden 49), and some matrices have fewer rows than there are ranks.
TEST(MuonMeshTest, UnevenShardsTrainAsOneRank) {
  TrainingPlan plan = with_muon({});
  plan.spec.n_kv_heads = 1;
  plan.spec.head_dim = plan.spec.v_head_dim = 2;  // wk and wv are [2, 32].
  plan.sharding.precision = {at::kDouble, at::kDouble, at::kDouble};
  expect_as_one_rank(plan, {{{.dp_shard = 2}, 2},
                            {{.dp_shard = 4}, 4},
                            {{.dp_replicate = 2, .dp_shard = 1}, 2},
                            {{.dp_replicate = 2, .dp_shard = 2}, 4},
                            {{.dp_shard = 2, .cp = 2}, 4},
                            {{.pp = 2, .dp_shard = 2}, 4}});
}

TEST(MuonMeshTest, TensorAndPipelineRanksTrainAsOne) {
  TrainingPlan plan = with_muon({});
  plan.spec.ffn_hidden = 48;
  plan.spec.n_layers = 4;
  expect_as_one_rank(plan, {{{.tp = 2}, 2}, {{.dp_shard = 2, .tp = 2}, 4}, {{.pp = 2, .tp = 2}, 4}});
  plan.schedule = "ZBVZeroBubble";
  expect_as_one_rank(plan, {{{.pp = 2}, 2}});
  plan.spec.tied_embeddings = true;
  plan.schedule = "1F1B";
  expect_as_one_rank(plan, {{{.pp = 2}, 2}});
}

// Stacks of experts are split over FSDP ranks, over expert ranks, along their rows if there are more ranks than
// experts, and over tensor ranks.
TEST(MuonMeshTest, ExpertsTrainAsOnOneRank) {
  expect_as_one_rank(with_muon(with_experts()), {{{.dp_shard = 2}, 2},
                                                 {{.dp_shard = 2, .ep = 2}, 2},
                                                 {{.dp_shard = 4, .ep = 2}, 4},
                                                 {{.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 4},
                                                 {{.dp_shard = 2, .tp = 2, .ep = 2}, 4},
                                                 {{.tp = 2}, 2},
                                                 {{.pp = 2, .dp_shard = 2, .ep = 2}, 4}});
  TrainingPlan few = with_muon(with_experts());
  few.spec.moe->num_experts = 2;
  few.global_batch = 8;
  expect_as_one_rank(few, {{{.dp_shard = 4}, 4}, {{.dp_shard = 8, .ep = 2}, 8}});
}

// If master shards are on the host, the device still orthogonalizes the matrices.
TEST(MuonMeshTest, OffloadedShardsTrainTheSame) {
  TrainingPlan plan = with_muon({});
  const RankOutcome one = train_world(plan, {}, 1)[0];
  plan.sharding.cpu_offload = true;
  testing::expect_same_training(one, train_world(plan, {.dp_shard = 2}, 2), testing::kExact);
}

// With fp32 masters and bf16 iterations, the mesh changes the order of the gradients' sums. Their last bit may change a
// bf16 rounding, 0.4 % of an update.
TEST(MuonMeshTest, Bf16IterationsStayNear) {
  TrainingPlan plan = with_muon({});
  plan.sharding.precision = {at::kFloat, at::kFloat, at::kFloat};
  const RankOutcome one = train_world(plan, {}, 1)[0];
  for (const auto& [degrees, world] :
       std::vector<std::pair<mesh::Degrees, int>>{{{.dp_shard = 4}, 4}, {{.dp_replicate = 2, .dp_shard = 2}, 4}}) {
    for (const RankOutcome& rank : train_world(plan, degrees, world)) {
      for (size_t step = 0; step < one.losses.size(); ++step)
        EXPECT_NEAR(rank.losses[step], one.losses[step], 1e-2 * one.losses[step]) << step;
    }
  }
}

// Muon's parameters need half of AdamW's state.
TEST(MuonMeshTest, StateIsOneNumberPerWeight) {
  const TrainingPlan plan = with_muon({});
  testing::run_ranks({.dp_shard = 2}, 2, testing::every_axis(), [&](testing::ThreadRank& self) {
    testing::RankModel model = testing::build_rank(plan, self);
    const auto optimizer = plan.make_optimizer(*model.sharded, self);
    const auto parameters = model.sharded->parameters();
    ASSERT_EQ(optimizer->states().size(), parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const bool hidden =
          parameters[i]->parameter->fqn.rfind("layers.", 0) == 0 && parameters[i]->parameter->shape.size() == 2;
      EXPECT_EQ(optimizer->states()[i].bytes(), static_cast<int64_t>(parameters[i]->value.nbytes()) * (hidden ? 1 : 2));
    }
    std::vector<std::string> keys;
    for (const checkpoint::Slice& slice : model.sharded->slices(optimizer.get())) keys.push_back(slice.key);
    const auto has = [&](const char* key) { return std::count(keys.begin(), keys.end(), key); };
    EXPECT_EQ(has("optim.momentum_buffer.layers.0.attention.wq.weight"), 1);
    EXPECT_EQ(has("optim.exp_avg.layers.0.attention.wq.weight"), 0);
    EXPECT_EQ(has("optim.exp_avg.output.weight"), 1);
  });
}

}  // namespace
}  // namespace titan::runtime
