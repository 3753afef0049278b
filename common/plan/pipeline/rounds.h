#pragma once

#include <vector>

#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// The order in which a rank with several stages takes microbatches: in rounds of about as many as there are ranks,
// each round through one stage after the other, so that a round comes back to the first rank just when that rank is
// done with it. torch wants rounds of equal length; here they may differ by one, longer ones first.
class RoundOrder {
 public:
  RoundOrder(const Schedule& shape, int rank);

  int size() const { return static_cast<int>(forward_.size()); }  // Stages of the rank times microbatches.
  int stages_per_rank() const { return stages_per_rank_; }
  int forward_stage(int place) const { return forward_[place]; }
  int backward_stage(int place) const { return backward_[place]; }
  // Forward passes before the first backward pass: through all stages of the rank but the last, and `per_hop` for each
  // rank behind this one.
  int ahead(int per_hop) const;

 private:
  int stages_per_rank_;
  int first_round_ = 0;
  int hops_;  // To the last rank.
  std::vector<int> forward_, backward_;
};

}  // namespace titan::pipeline
