#pragma once

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

}  // namespace titan::pipeline
