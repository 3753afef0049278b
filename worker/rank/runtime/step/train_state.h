#pragma once

#include <cstdint>

#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/loaded.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

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
