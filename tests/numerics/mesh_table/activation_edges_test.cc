// With full recomputation nothing but the blocks' inputs lives between two pieces of a rank's work.

#include <gtest/gtest.h>

#include <set>

#include "common/config/pipeline.h"
#include "tests/numerics/mesh_table/rows.h"

namespace titan::testing {
namespace {

struct EdgeCase {
  const char* name;
  const char* schedule;
  int pp = 1, tp = 1;
  bool sequence_parallel = true;

  friend void PrintTo(const EdgeCase& value, std::ostream* out) { *out << value.name; }
};

// Neighbouring stages of other ranks.
int64_t boundaries(const pipeline::Schedule& schedule, int rank) {
  int64_t count = 0;
  for (const int stage : schedule.stages_of(rank)) count += (stage > 0) + (stage + 1 < schedule.stages);
  return count;
}

class ActivationEdgesTest : public ::testing::TestWithParam<EdgeCase> {};

// Bytes alive before each piece of work against the inputs of the blocks whose microbatches wait for their gradients,
// and what is on its way between stages (at each boundary two tensors out and two in): never more than a tenth above,
// and no less than the inputs. Nothing is sharded, so that weights and gradients take no memory of their own. Ranks
// that hold the head are left out while it waits: its own graph, with the logits, is not recomputed.
TEST_P(ActivationEdgesTest, OnlyBlockInputsWait) {
  const EdgeCase& row = GetParam();
  MeshJob job;
  job.spec = small_spec("llama3");
  job.spec.n_layers = 46;  // Many blocks a stage: transfers in flight are small beside their inputs.
  job.world = row.pp * row.tp;
  job.global_batch = 8;
  job.steps = 1;
  config::JobConfig& config = job.config;
  config.training.seq_len = 64;
  config.training.dtype = "float32";
  config.training.mixed_precision_param = "float32";
  config.training.local_batch_size = job.global_batch;
  config.activation_checkpoint.mode = "full";
  config.resources.ranks = job.world;
  config.parallelism.pipeline_parallel_degree = row.pp;
  config.parallelism.tensor_parallel_degree = row.tp;
  config.parallelism.data_parallel_shard_degree = 1;
  config.parallelism.enable_sequence_parallel = row.sequence_parallel;
  config.parallelism.pipeline_parallel_schedule = row.schedule;
  const pipeline::Plan plan = config::pipeline_plan(config, job.spec.n_layers).value();

  const int64_t edge = config.training.seq_len / (row.sequence_parallel ? row.tp : 1) * job.spec.dim * 4;
  std::vector<std::set<std::pair<int, int>>> waiting(job.world);  // (stage, microbatch), by rank.
  std::vector<int64_t> compared(job.world);
  job.begins = [&](int rank, const pipeline::Action& action, int64_t live) {
    auto& in_flight = waiting[rank];
    int64_t predicted = 0;
    bool holds_head = false;
    for (const auto& [stage, microbatch] : in_flight) {
      // The first block's input is the tokens.
      predicted += edge * static_cast<int64_t>(plan.split[stage].size() - (stage == 0 ? 1 : 0));
      holds_head |= stage == plan.schedule.stages - 1;
    }
    const int64_t in_transit = 4 * edge * boundaries(plan.schedule, rank / row.tp) + 64;  // And the loss.
    if (!holds_head && predicted > 0) {
      EXPECT_LE(live, (predicted + in_transit) * 11 / 10) << "rank " << rank << " before " << to_string(action);
      EXPECT_GE(live, predicted) << "rank " << rank << " before " << to_string(action);
      ++compared[rank];
    }
    if (action.work == pipeline::Work::kForward) in_flight.insert({action.stage, action.microbatch});
    const bool done = action.work == pipeline::Work::kBackward || action.work == pipeline::Work::kWeightGradient;
    if (done) in_flight.erase({action.stage, action.microbatch});
  };
  run_mesh_job(job);
  EXPECT_GT(compared[0], 4) << "nothing was compared";
}

INSTANTIATE_TEST_SUITE_P(Meshes, ActivationEdgesTest,
                         ::testing::Values(EdgeCase{"pp2_1F1B", "1F1B", 2}, EdgeCase{"pp4_1F1B", "1F1B", 4},
                                           EdgeCase{"pp2_GPipe", "GPipe", 2},
                                           EdgeCase{"pp2_Interleaved", "Interleaved1F1B", 2},
                                           EdgeCase{"pp2_tp2", "1F1B", 2, 2},
                                           EdgeCase{"pp2_tp2_plain", "1F1B", 2, 2, false},
                                           EdgeCase{"pp4_tp2", "GPipe", 4, 2}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace titan::testing
