#include "worker/runtime/executor.h"

#include <set>
#include <utility>

#include "worker/runtime/transfers.h"

namespace titan::runtime {

using pipeline::Action;
using pipeline::Schedule;
using pipeline::Step;
using pipeline::Work;

namespace {

bool brings_weight_gradients(const Action& action) {
  return action.work == Work::kBackward || action.work == Work::kWeightGradient;
}

}  // namespace

// One run of a schedule.
class Executor::Run {
 public:
  Run(const Executor& executor, const Schedule& schedule, const std::vector<nn::MicrobatchContext>& microbatches,
      const std::function<int64_t()>& global_tokens, bool last);
  at::Tensor execute();

 private:
  void execute(const Action& action);
  void forward(const Action& action);
  void backward(const Action& action);
  at::Tensor loss_gradient();
  bool is_last(int stage) const { return stage + 1 == schedule_.stages; }

  const Executor& executor_;
  const Schedule& schedule_;
  const std::vector<nn::MicrobatchContext>& microbatches_;
  const std::function<int64_t()>& global_tokens_;
  const bool last_;
  Transfers transfers_;
  at::Tensor loss_sum_;
  at::Tensor loss_gradient_;
  bool divided_ = false;
  std::set<int> reduced_;
  std::map<int, int> open_;  // Passes that bring weight gradients and have not begun, by stage.
};

Executor::Executor(std::map<int, StageRunner*> stages, const comm::Group* pipeline,
                   std::function<void(const Action&)> begins)
    : stages_(std::move(stages)),
      pipeline_(pipeline != nullptr && pipeline->size() > 1 ? pipeline : nullptr),
      begins_(std::move(begins)) {}

at::Tensor Executor::run(const Schedule& schedule, const std::vector<nn::MicrobatchContext>& microbatches,
                         const std::function<int64_t()>& global_tokens, bool last) {
  TORCH_CHECK(schedule.microbatches == static_cast<int>(microbatches.size()), "schedule ", schedule.name, " is for ",
              schedule.microbatches, " microbatches, not ", microbatches.size());
  TORCH_CHECK(schedule.ranks == (pipeline_ == nullptr ? 1 : pipeline_->size()), "schedule ", schedule.name, " is for ",
              schedule.ranks, " ranks");
  return Run(*this, schedule, microbatches, global_tokens, last).execute();
}

Executor::Run::Run(const Executor& executor, const Schedule& schedule,
                   const std::vector<nn::MicrobatchContext>& microbatches,
                   const std::function<int64_t()>& global_tokens, bool last)
    : executor_(executor),
      schedule_(schedule),
      microbatches_(microbatches),
      global_tokens_(global_tokens),
      last_(last),
      transfers_(schedule, executor.pipeline_,
                 [this](const Message& message) {
                   // The gradient of an output looks like the next stage's input, which looks like this one's.
                   return executor_.stages_.at(message.stage)->empty_input(microbatches_[message.microbatch]);
                 }),
      loss_sum_(at::zeros({}, microbatches.front().tokens.options().dtype(at::kDouble))) {}

at::Tensor Executor::Run::execute() {
  const std::vector<Step>& steps = schedule_.steps[executor_.pipeline_ == nullptr ? 0 : executor_.pipeline_->rank()];
  for (const Step& step : steps) {
    for (const Action& action : step.actions) open_[action.stage] += brings_weight_gradients(action);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    transfers_.look_ahead(static_cast<int>(i));
    for (const Action& action : steps[i].actions) execute(action);
  }
  transfers_.finish();
  if (last_ && !schedule_.forward_only) {
    // Those that a hand-written schedule says nothing about.
    for (auto stage = executor_.stages_.rbegin(); stage != executor_.stages_.rend(); ++stage) {
      if (reduced_.insert(stage->first).second) stage->second->reduce();
    }
  }
  return loss_sum_;
}

void Executor::Run::execute(const Action& action) {
  if (executor_.begins_) executor_.begins_(action);
  StageRunner& stage = *executor_.stages_.at(action.stage);
  if (brings_weight_gradients(action)) --open_[action.stage];
  switch (action.work) {
    case Work::kForward:
      return forward(action);
    case Work::kBackward:
    case Work::kInputGradient:
      return backward(action);
    case Work::kWeightGradient:
      return stage.weight_gradient(action.microbatch, last_ && open_[action.stage] == 0);
    case Work::kReduce:
      if (last_ && reduced_.insert(action.stage).second) stage.reduce();
      return;
  }
}

void Executor::Run::forward(const Action& action) {
  StageRunner& stage = *executor_.stages_.at(action.stage);
  const nn::MicrobatchContext& context = microbatches_[action.microbatch];
  stage.expect_forward();
  at::Tensor input;
  if (action.stage > 0) input = transfers_.take(needed_by(action, schedule_.stages));
  at::Tensor output = schedule_.forward_only ? stage.evaluate(context, std::move(input))
                                             : stage.forward(action.microbatch, context, std::move(input));
  if (!is_last(action.stage)) return transfers_.give(made_by(action, schedule_.stages), std::move(output));
  loss_sum_ += output;
  if (!schedule_.forward_only && !loss_gradient_.defined()) loss_gradient_ = at::ones_like(output);
}

// The same for every microbatch of the step: what is summed up is the loss per valid token of all ranks.
at::Tensor Executor::Run::loss_gradient() {
  if (divided_) return loss_gradient_;
  divided_ = true;
  return loss_gradient_ = loss_gradient_ / static_cast<double>(global_tokens_());
}

void Executor::Run::backward(const Action& action) {
  StageRunner& stage = *executor_.stages_.at(action.stage);
  stage.expect_backward();
  at::Tensor gradient = is_last(action.stage) ? loss_gradient() : transfers_.take(needed_by(action, schedule_.stages));
  gradient = action.work == Work::kBackward
                 ? stage.backward(action.microbatch, std::move(gradient), last_ && open_[action.stage] == 0)
                 : stage.input_gradient(action.microbatch, std::move(gradient));
  if (action.stage > 0) transfers_.give(made_by(action, schedule_.stages), std::move(gradient));
}

}  // namespace titan::runtime
