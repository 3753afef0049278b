#pragma once

#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// How far steps move the biases that balance the experts, which it sets in `built` and returns. A set key wins; without
// one a resumed job goes on as it began, and where the loaded weights have no such biases they stay zero: an export
// could not hold them. 0 without experts. Rank 0 says it.
double settle_balance(const RankContext& context, const checkpoint::LoadResult& read, Built& built);

}  // namespace titan::runtime
