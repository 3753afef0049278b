// Trains ten steps with experts that gather all tokens: they equal those with experts that receive rows, and those of
// one rank, on every kind of mesh and with every kind of recomputation.
#include "tests/numerics/small_models/small_specs.h"
#include "tests/worker/rank/runtime/training_world.h"

namespace titan::runtime {
namespace {

using testing::RankOutcome;
using testing::TrainingPlan;

struct DispatchCase {
  const char* name;
  const char* family;
  mesh::Degrees degrees;
  int world;
  parallel::CheckpointOptions ac;
  std::function<void(TrainingPlan&)> change;

  friend void PrintTo(const DispatchCase& value, std::ostream* out) { *out << value.name; }
};

class ExpertDispatcherTest : public ::testing::TestWithParam<DispatchCase> {};

TEST_P(ExpertDispatcherTest, GatheringTrainsAsExchanging) {
  const DispatchCase& one = GetParam();
  TrainingPlan plan;
  plan.spec = testing::small_spec(one.family);
  plan.spec.n_layers = 4;
  plan.steps = 10;
  plan.sharding.ac = one.ac;
  if (one.change) one.change(plan);
  TrainingPlan alone = plan;
  alone.sharding.ac = {.mode = "none"};
  alone.microbatches = 1;
  alone.overlap_pairs = false;
  const RankOutcome reference = testing::train_world(alone, {}, 1)[0];
  const std::vector<RankOutcome> exchanging = testing::train_world(plan, one.degrees, one.world);
  plan.parallel.expert_dispatcher = "allgather";
  const std::vector<RankOutcome> gathering = testing::train_world(plan, one.degrees, one.world);
  testing::expect_same_training(reference, gathering, testing::kExact);
  for (int rank = 0; rank < one.world; ++rank) {
    for (int step = 0; step < plan.steps; ++step)
      EXPECT_NEAR(gathering[rank].losses[step], exchanging[rank].losses[step], testing::kExact) << "step " << step + 1;
    const auto gathers = [&](const RankOutcome& of) { return of.step_traffic.count("ep/all_to_all") == 0; };
    EXPECT_TRUE(gathers(gathering[rank]) && !gathers(exchanging[rank]));
  }
}

std::function<void(TrainingPlan&)> scheduled(const char* name, int stages, bool overlap = false) {
  return [=](TrainingPlan& plan) {
    plan.schedule = name;
    plan.stages_per_rank = stages;
    plan.overlap_pairs = overlap;
    plan.pipeline_microbatches = 2 * stages;
    plan.global_batch = 4 * stages;  // For two batch ranks.
  };
}

const parallel::CheckpointOptions kByOperation{.mode = "selective", .selective_ac_option = "op"};

INSTANTIATE_TEST_SUITE_P(
    Meshes, ExpertDispatcherTest,
    ::testing::Values(
        DispatchCase{"ep2", "deepseek_v3", {.dp_shard = 2, .ep = 2}, 2, {.mode = "none"}, {}},
        DispatchCase{"ep4_again", "qwen3_moe", {.dp_shard = 4, .ep = 4}, 4, {.mode = "full"}, {}},
        DispatchCase{"ep2_of_4_by_operation", "gpt_oss", {.dp_shard = 4, .ep = 2}, 4, kByOperation, {}},
        DispatchCase{"ep2_accumulating",
                     "llama4",
                     {.dp_shard = 2, .ep = 2},
                     2,
                     {.mode = "memory_budget"},
                     [](TrainingPlan& plan) { plan.microbatches = 2; }},
        DispatchCase{"ep2_tp2_cut", "deepseek_v3", {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 4, kByOperation, {}},
        DispatchCase{"ep4_tp2_apart",
                     "llama4",
                     {.dp_shard = 2, .tp = 2, .ep = 4, .etp = 1},
                     4,
                     {.mode = "selective", .selective_ac_option = "2"},
                     {}},
        DispatchCase{"ep2_cp2", "qwen3_moe", {.dp_shard = 1, .cp = 2, .ep = 2}, 2, kByOperation, {}},
        DispatchCase{"ep2_pp2_split",
                     "gpt_oss",
                     {.pp = 2, .dp_shard = 2, .ep = 2},
                     4,
                     {.mode = "full"},
                     scheduled("ZBVZeroBubble", 2)},
        DispatchCase{"ep2_pp2_pairs",
                     "deepseek_v3",
                     {.pp = 2, .dp_shard = 2, .ep = 2},
                     4,
                     {.mode = "none"},
                     scheduled("DualPipeV", 2, /*overlap=*/true)}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace titan::runtime
