#pragma once

// Builds one rank's list of steps, and the rounds in which a rank with several stages takes its microbatches.

#include <deque>
#include <map>
#include <vector>

#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// Writes one rank's list. Each stage takes its microbatches in ascending order, so that a generator only says which
// stage works next.
class RankOrder {
 public:
  void forward(int stage) { add({next(stage, Work::kForward)}); }
  void backward(int stage) { add({next(stage, Work::kBackward)}); }
  void input_gradient(int stage) { add({next(stage, Work::kInputGradient)}); }
  // The oldest weight gradient of any stage that still waits; nothing when none does.
  void weight_gradient() {
    if (waiting_.empty()) return;
    add({waiting_.front()});
    waiting_.pop_front();
  }
  // The oldest one of this stage.
  void weight_gradient(int stage);
  void all_weight_gradients(int stage);
  void all_weight_gradients() {
    while (!waiting_.empty()) weight_gradient();
  }
  // Side by side, of different microbatches.
  void pair(int forward_stage, int backward_stage) {
    add({next(forward_stage, Work::kForward), next(backward_stage, Work::kBackward)});
  }

  int forwards(int stage) { return forwards_[stage]; }
  int backwards(int stage) { return backwards_[stage]; }

  // Without the microbatches from `microbatches` on, which a generator may have used as padding, and with reductions.
  std::vector<Step> finish(int microbatches) const;

 private:
  void add(std::vector<Action> actions) { steps_.push_back({std::move(actions)}); }
  Action next(int stage, Work work);

  std::vector<Step> steps_;
  std::map<int, int> forwards_, backwards_;  // Microbatches begun, by stage.
  std::deque<Action> waiting_;               // Weight gradients whose input gradient is done.
};

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
