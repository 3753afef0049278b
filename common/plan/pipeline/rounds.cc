#include "common/plan/pipeline/rounds.h"

#include <algorithm>

namespace titan::pipeline {

RoundOrder::RoundOrder(const Schedule& shape, int rank) : hops_(shape.ranks - 1 - rank) {
  const std::vector<int> own = shape.stages_of(rank);
  stages_per_rank_ = static_cast<int>(own.size());
  const int rounds = std::max(1, shape.microbatches / shape.ranks);
  for (int round = 0; round < rounds; ++round) {
    const int length = shape.microbatches / rounds + (round < shape.microbatches % rounds ? 1 : 0);
    if (round == 0) first_round_ = length;
    for (const int stage : own) forward_.insert(forward_.end(), length, stage);
    for (auto stage = own.rbegin(); stage != own.rend(); ++stage) backward_.insert(backward_.end(), length, *stage);
  }
}

int RoundOrder::ahead(int per_hop) const {
  return std::min((stages_per_rank_ - 1) * first_round_ + per_hop * hops_, size());
}

}  // namespace titan::pipeline
