#include "worker/rank/runtime/engine/executor.h"

#include <set>
#include <utility>

#include "worker/rank/device/trace_scope.h"
#include "worker/rank/runtime/engine/transfers.h"

namespace titan::runtime {

using pipeline::Action;
using pipeline::ComputationType;
using pipeline::Schedule;
using pipeline::ScheduleStep;

namespace {

bool takes_gradient(const Action& action) {
  return action.work == ComputationType::kBackward || action.work == ComputationType::kInputGradient;
}

bool brings_weight_gradients(const Action& action) {
  return action.work == ComputationType::kBackward || action.work == ComputationType::kWeightGradient;
}

std::string words(const Action& action) {
  const char* work = "";
  switch (action.work) {
    case ComputationType::kForward:
      work = "forward ";
      break;
    case ComputationType::kBackward:
      work = "backward ";
      break;
    case ComputationType::kInputGradient:
      work = "input gradients ";
      break;
    case ComputationType::kWeightGradient:
      work = "weight gradients ";
      break;
    case ComputationType::kReduce:
      work = "reduction ";
      break;
  }
  return work + pipeline::to_string(action);
}

}  // namespace

// One run of a schedule.
class Executor::Run {
 public:
  Run(const Executor& executor, const Schedule& schedule, const std::vector<nn::MicrobatchContext>& microbatches,
      const std::function<at::Tensor()>& global_terms, bool last);
  at::Tensor execute();

 private:
  void execute(const Action& action);
  void execute_pair(const Action& first, const Action& second);
  at::Tensor take_input(const Action& action);
  at::Tensor compute(const Action& action, at::Tensor input);
  void hand_on(const Action& action, at::Tensor output);
  at::Tensor loss_gradient();
  bool is_last(int stage) const { return stage + 1 == schedule_.stages; }

  const Executor& executor_;
  const Schedule& schedule_;
  const std::vector<nn::MicrobatchContext>& microbatches_;
  const std::function<at::Tensor()>& global_terms_;
  const bool last_;
  Transfers transfers_;
  at::Tensor loss_sum_;
  at::Tensor loss_gradient_;
  bool divided_ = false;
  std::set<int> reduced_;
  std::map<int, int> open_;  // Passes that produce weight gradients and have not begun, by stage.
};

Executor::Executor(std::map<int, StageRunner*> stages, const comm::Group* pipeline,
                   std::function<void(const Action&)> begins)
    : stages_(std::move(stages)),
      pipeline_(pipeline != nullptr && pipeline->size() > 1 ? pipeline : nullptr),
      begins_(std::move(begins)) {}

void Executor::overlap_pairs() { pairs_ = std::make_unique<PairRunner>(); }

at::Tensor Executor::run(const Schedule& schedule, const std::vector<nn::MicrobatchContext>& microbatches,
                         const std::function<at::Tensor()>& global_terms, bool last) {
  TORCH_CHECK(schedule.microbatches == static_cast<int>(microbatches.size()), "schedule ", schedule.name, " is for ",
              schedule.microbatches, " microbatches, not ", microbatches.size());
  TORCH_CHECK(schedule.ranks == (pipeline_ == nullptr ? 1 : pipeline_->size()), "schedule ", schedule.name, " is for ",
              schedule.ranks, " ranks");
  return Run(*this, schedule, microbatches, global_terms, last).execute();
}

Executor::Run::Run(const Executor& executor, const Schedule& schedule,
                   const std::vector<nn::MicrobatchContext>& microbatches,
                   const std::function<at::Tensor()>& global_terms, bool last)
    : executor_(executor),
      schedule_(schedule),
      microbatches_(microbatches),
      global_terms_(global_terms),
      last_(last),
      transfers_(schedule, executor.pipeline_,
                 [this](const Message& message) {
                   // The gradient of an output has the shape of the next stage's input, which has the shape of this
                   // stage's.
                   return executor_.stages_.at(message.stage)->empty_input(microbatches_[message.microbatch]);
                 }),
      loss_sum_(at::zeros({}, at::TensorOptions(at::kDouble).device(microbatches.front().device()))) {}

at::Tensor Executor::Run::execute() {
  const std::vector<ScheduleStep>& steps =
      schedule_.steps[executor_.pipeline_ == nullptr ? 0 : executor_.pipeline_->rank()];
  for (const ScheduleStep& step : steps) {
    for (const Action& action : step.actions) open_[action.stage] += brings_weight_gradients(action);
  }
  const bool overlap = executor_.pairs_ != nullptr && pairs_can_overlap(schedule_);
  for (size_t i = 0; i < steps.size(); ++i) {
    transfers_.look_ahead(static_cast<int>(i));
    const std::vector<Action>& actions = steps[i].actions;
    if (overlap && actions.size() == 2) {
      execute_pair(actions[0], actions[1]);
    } else {
      for (const Action& action : actions) execute(action);
    }
  }
  transfers_.finish();
  if (last_ && !schedule_.forward_only) {
    // Stages without an action kReduce in a hand-written schedule.
    for (auto stage = executor_.stages_.rbegin(); stage != executor_.stages_.rend(); ++stage) {
      if (reduced_.insert(stage->first).second) stage->second->reduce();
    }
  }
  return loss_sum_;
}

void Executor::Run::execute(const Action& action) {
  at::Tensor input = take_input(action);
  hand_on(action, compute(action, std::move(input)));
}

// Both inputs have arrived before either half begins, and both results are sent after both are done, so the order of
// this rank's work does not depend on timing.
void Executor::Run::execute_pair(const Action& first, const Action& second) {
  at::Tensor input[2] = {take_input(first), take_input(second)};
  at::Tensor output[2];
  executor_.pairs_->run([&] { output[0] = compute(first, std::move(input[0])); },
                        [&] { output[1] = compute(second, std::move(input[1])); });
  hand_on(first, std::move(output[0]));
  hand_on(second, std::move(output[1]));
}

at::Tensor Executor::Run::take_input(const Action& action) {
  if (executor_.begins_) executor_.begins_(action);
  StageRunner& stage = *executor_.stages_.at(action.stage);
  if (action.work == ComputationType::kForward) stage.expect_forward();
  if (takes_gradient(action)) {
    stage.expect_backward();
    if (is_last(action.stage)) return loss_gradient();
  }
  const Message needed = consumed_by(action, schedule_.stages);
  return needed == kNoMessage ? at::Tensor() : transfers_.take(needed);
}

at::Tensor Executor::Run::compute(const Action& action, at::Tensor input) {
  const device::TraceScope trace([&] { return words(action); });
  StageRunner& stage = *executor_.stages_.at(action.stage);
  bool last = false;
  if (brings_weight_gradients(action)) last = --open_[action.stage] == 0 && last_;
  switch (action.work) {
    case ComputationType::kForward:
      if (schedule_.forward_only) return stage.evaluate(microbatches_[action.microbatch], std::move(input));
      return stage.forward(action.microbatch, microbatches_[action.microbatch], std::move(input));
    case ComputationType::kBackward:
      return stage.backward(action.microbatch, std::move(input), last);
    case ComputationType::kInputGradient:
      return stage.input_gradient(action.microbatch, std::move(input));
    case ComputationType::kWeightGradient:
      stage.weight_gradient(action.microbatch, last);
      return {};
    case ComputationType::kReduce:
      if (last_ && reduced_.insert(action.stage).second) stage.reduce();
      return {};
  }
  return {};
}

void Executor::Run::hand_on(const Action& action, at::Tensor output) {
  const Message made = produced_by(action, schedule_.stages);
  if (made != kNoMessage) return transfers_.give(made, std::move(output));
  if (action.work != ComputationType::kForward) return;
  loss_sum_ += output;
  if (!schedule_.forward_only && !loss_gradient_.defined()) loss_gradient_ = at::ones_like(output);
}

// The same for every microbatch of the step: the step's loss is the sum divided by the number of terms on all ranks.
at::Tensor Executor::Run::loss_gradient() {
  if (divided_) return loss_gradient_;
  divided_ = true;
  return loss_gradient_ = loss_gradient_ / global_terms_();
}

}  // namespace titan::runtime
