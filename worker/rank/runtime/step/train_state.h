#pragma once

// load() restores the state with which an attempt begins, from a checkpoint, from weights or by drawing. train_state()
// returns the part of it that a checkpoint saves in addition to tensors.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/data_setup.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// State with which an attempt begins, from its checkpoint or initial weights and its data.
struct LoadedState {
  int64_t step = 0;             // Finished steps.
  int64_t schedule_step = 0;    // The schedule's count: lower if the schedule was excluded from loading.
  int64_t tokens_seen = 0;      // Over all ranks.
  std::optional<int64_t> seed;  // Seed of the initial weights. Empty if their checkpoint does not record it.
  int64_t rounding_seed = 0;    // Seed of the optimizer's stochastic rounding: that of the job's first attempt.
  double load_balance_coeff = 0;
  nlohmann::json base;  // describe_base() of the model below adapters.
  BatchPlan batch_plan;
  std::unique_ptr<data::BatchSource> loader;
  // Source of the weights, of the job or of the model below its adapters.
  checkpoint::Source source = checkpoint::Source::kFresh;
  std::string path;
};

// Fills the model and optimizer of `built` from the newest usable checkpoint, from the weights that the configuration
// names, or by drawing, and positions the data. If the job keeps a batch that this mesh splits differently, the
// pipeline's schedule in `built` changes too. `checkpointer` may be null. Collective. Throws Failure.
LoadedState load(RankContext& context, Built& built, checkpoint::Checkpointer* checkpointer);

// Reports the load to the node, once everything that a start needs is ready.
void report_loaded(RankContext& context, const LoadedState& loaded);

// Draws initial weights by `seed` for trained, frozen or all parameters.
void draw_weights(const RankContext& context, ShardedModel& model, int64_t seed, ShardedModel::Which which);

// Sets in `built`, and returns, the coefficient by which steps move the biases that balance the experts. A configured
// key wins. Otherwise a resumed job keeps its coefficient. If the loaded weights have no such biases, they stay zero,
// because an export could not hold them. 0 without experts. Rank 0 logs it.
double settle_balance(const RankContext& context, const checkpoint::LoadResult& read, Built& built);

// Progress of an attempt.
struct Progress {
  int64_t step = 0;           // Finished steps.
  int64_t schedule_step = 0;  // The schedule's count: lower if the schedule was excluded from loading.
  int64_t tokens_seen = 0;    // Over all ranks.
};

// Returns the contents of a checkpoint in addition to tensors. load() reads it so that an attempt resumes like this
// one.
checkpoint::TrainState train_state(const RankContext& context, const Built& built, const LoadedState& start,
                                   const Progress& progress);

}  // namespace titan::runtime
