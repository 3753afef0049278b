#pragma once

// load() restores where an attempt begins, from a checkpoint, from weights or by drawing; train_state() gives what a
// checkpoint saves of it besides tensors.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/data_setup.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Where an attempt begins: what its checkpoint, or the weights that it starts with, and its data came to.
struct Loaded {
  int64_t step = 0;             // Finished steps.
  int64_t schedule_step = 0;    // The schedule's own count: lower when it was excluded from loading.
  int64_t tokens_seen = 0;      // Over all ranks.
  std::optional<int64_t> seed;  // Of the initial weights; none where the checkpoint that they came from does not say.
  int64_t rounding_seed = 0;    // Of the optimizer's stochastic rounding: that of the job's first attempt.
  double load_balance_coeff = 0;
  nlohmann::json base;  // describe_base() of the model beneath adapters.
  BatchPlan batch_plan;
  std::unique_ptr<data::Loader> loader;
  // Which weights they are, of the job or of the model beneath its adapters.
  checkpoint::Source source = checkpoint::Source::kFresh;
  std::string path;
};

// Fills the model and optimizer of `built` from the newest usable checkpoint, the weights that the configuration names
// or by drawing, and finds the place in the data. Where the job keeps a batch that this mesh deals in other pieces, the
// pipeline's schedule of `built` changes with it. `checkpointer` may be null. Collective. Throws Failure.
Loaded load(RankContext& context, Built& built, checkpoint::Checkpointer* checkpointer);

// Tells the node, once all that a start needs is there.
void tell_loaded(RankContext& context, const Loaded& loaded);

// Gives the model initial weights, drawn by `seed`, of what is trained, frozen or both.
void draw_weights(const RankContext& context, ShardedModel& model, int64_t seed, ShardedModel::Which which);

// How far steps move the biases that balance the experts, which it sets in `built` and returns. A set key wins; without
// one a resumed job goes on as it began, and where the loaded weights have no such biases they stay zero: an export
// could not hold them. 0 without experts. Rank 0 says it.
double settle_balance(const RankContext& context, const checkpoint::LoadResult& read, Built& built);

// How far an attempt has come.
struct Progress {
  int64_t step = 0;           // Finished steps.
  int64_t schedule_step = 0;  // The schedule's own count: lower when it was excluded from loading.
  int64_t tokens_seen = 0;    // Over all ranks.
};

// What a checkpoint holds besides tensors: with it an attempt goes on as this one would (load() reads it).
checkpoint::TrainState train_state(const RankContext& context, const Built& built, const Loaded& start,
                                   const Progress& progress);

}  // namespace titan::runtime
