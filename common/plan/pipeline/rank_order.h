#pragma once

// Builds one rank's list of steps, and the rounds in which a rank with several stages processes its microbatches.

#include <deque>
#include <map>
#include <vector>

#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// Builds one rank's list. Each stage processes its microbatches in ascending order, so a generator only names the stage
// that works next.
class RankScheduleBuilder {
 public:
  void forward(int stage) { add({next(stage, ComputationType::kForward)}); }
  void backward(int stage) { add({next(stage, ComputationType::kBackward)}); }
  void input_gradient(int stage) { add({next(stage, ComputationType::kInputGradient)}); }
  // Adds the oldest pending weight gradient of any stage; does nothing without one.
  void weight_gradient() {
    if (waiting_.empty()) return;
    add({waiting_.front()});
    waiting_.pop_front();
  }
  // Adds the oldest pending weight gradient of this stage.
  void weight_gradient(int stage);
  void all_weight_gradients(int stage);
  void all_weight_gradients() {
    while (!waiting_.empty()) weight_gradient();
  }
  // Adds a step in which both run at once, on different microbatches.
  void pair(int forward_stage, int backward_stage) {
    add({next(forward_stage, ComputationType::kForward), next(backward_stage, ComputationType::kBackward)});
  }

  int forwards(int stage) { return forwards_[stage]; }
  int backwards(int stage) { return backwards_[stage]; }

  // Returns the list with reductions and without microbatch numbers of `microbatches` or more, which a generator may
  // use as padding.
  std::vector<ScheduleStep> finish(int microbatches) const;

 private:
  void add(std::vector<Action> actions) { steps_.push_back({std::move(actions)}); }
  Action next(int stage, ComputationType work);

  std::vector<ScheduleStep> steps_;
  std::map<int, int> forwards_, backwards_;  // Microbatches begun, by stage.
  std::deque<Action> waiting_;               // Weight gradients whose input gradient is done.
};

// The order in which a rank with several stages processes microbatches. Rounds have about as many microbatches as there
// are ranks, and each round passes one stage after the other, so a round returns to the first rank just when that rank
// has finished the previous stage of it. torch requires rounds of equal length; here they may differ by one, longer
// ones first.
class InterleavedOrder {
 public:
  InterleavedOrder(const Schedule& shape, int rank);

  int size() const { return static_cast<int>(forward_.size()); }  // Stages of the rank times microbatches.
  int stages_per_rank() const { return stages_per_rank_; }
  int forward_stage(int place) const { return forward_[place]; }
  int backward_stage(int place) const { return backward_[place]; }
  // Returns the number of forward passes before the first backward pass: those through all stages of the rank but the
  // last, and `per_hop` for each rank after this one.
  int ahead(int per_hop) const;

 private:
  int stages_per_rank_;
  int first_round_ = 0;
  int hops_;  // Number of ranks after this one.
  std::vector<int> forward_, backward_;
};

}  // namespace titan::pipeline
