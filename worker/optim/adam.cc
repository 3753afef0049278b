#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <utility>

#include "worker/optim/optimizer.h"

namespace titan::optim {
namespace {

enum class Implementation { kFused, kForeach, kForLoop };

// Adam and AdamW with torch.optim's three implementations, which differ in rounding only. One step counter serves all
// slots: they always step together.
class Adam : public Optimizer {
 public:
  Adam(const Options& options, Implementation implementation, std::vector<Slot> slots)
      : options_(options),
        implementation_(implementation),
        decoupled_(options.name == "AdamW"),
        slots_(std::move(slots)) {
    step_ = at::zeros({}, at::kFloat);
    for (const Slot& slot : slots_) {
      TORCH_CHECK(slot.value.sizes() == slot.grad.sizes() && slot.value.scalar_type() == slot.grad.scalar_type(),
                  slot.fqn, ": value and gradient differ in shape or type");
      states_.push_back({at::zeros_like(slot.value), at::zeros_like(slot.value)});
      if (slot.value.numel() == 0) continue;  // A rank that holds nothing of this parameter.
      values_.push_back(slot.value);
      grads_.push_back(slot.grad);
      averages_.push_back(states_.back().exp_avg);
      squares_.push_back(states_.back().exp_avg_sq);
    }
    if (!values_.empty()) step_ = step_.to(values_.front().device());
  }

  void step(double learning_rate) override {
    at::NoGradGuard no_grad;
    step_.add_(1);
    if (values_.empty()) return;
    switch (implementation_) {
      case Implementation::kFused:
        return step_fused(learning_rate);
      case Implementation::kForeach:
        return step_foreach(learning_rate);
      case Implementation::kForLoop:
        return step_each(learning_rate);
    }
  }

  std::vector<SlotState>& states() override { return states_; }
  at::Tensor& step_count() override { return step_; }

 private:
  struct Correction {
    double step_size;
    double root;
  };

  Correction correction(double learning_rate) const {
    const double step = step_.item<double>();
    return {learning_rate / (1 - std::pow(options_.beta1, step)), std::sqrt(1 - std::pow(options_.beta2, step))};
  }

  void step_fused(double learning_rate) {
    const std::vector<at::Tensor> steps(values_.size(), step_);
    const Options& o = options_;
    if (decoupled_) {
      at::_fused_adamw_(values_, grads_, averages_, squares_, {}, steps, learning_rate, o.beta1, o.beta2,
                        o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false);
    } else {
      at::_fused_adam_(values_, grads_, averages_, squares_, {}, steps, learning_rate, o.beta1, o.beta2, o.weight_decay,
                       o.eps, /*amsgrad=*/false, /*maximize=*/false);
    }
  }

  void step_foreach(double learning_rate) {
    std::vector<at::Tensor> grads = grads_;
    if (options_.weight_decay != 0) {
      if (decoupled_) {
        at::_foreach_mul_(values_, 1 - learning_rate * options_.weight_decay);
      } else {
        grads = at::_foreach_add(grads_, values_, options_.weight_decay);
      }
    }
    at::_foreach_lerp_(averages_, grads, 1 - options_.beta1);
    at::_foreach_mul_(squares_, options_.beta2);
    at::_foreach_addcmul_(squares_, grads, grads, 1 - options_.beta2);
    const Correction fix = correction(learning_rate);
    std::vector<at::Tensor> denominators = at::_foreach_sqrt(squares_);
    at::_foreach_div_(denominators, fix.root);
    at::_foreach_add_(denominators, options_.eps);
    at::_foreach_addcdiv_(values_, averages_, denominators, -fix.step_size);
  }

  void step_each(double learning_rate) {
    const Correction fix = correction(learning_rate);
    for (size_t i = 0; i < values_.size(); ++i) {
      at::Tensor grad = grads_[i];
      if (options_.weight_decay != 0) {
        if (decoupled_) {
          values_[i].mul_(1 - learning_rate * options_.weight_decay);
        } else {
          grad = grad.add(values_[i], options_.weight_decay);
        }
      }
      averages_[i].lerp_(grad, 1 - options_.beta1);
      squares_[i].mul_(options_.beta2).addcmul_(grad, grad, 1 - options_.beta2);
      const at::Tensor denominator = squares_[i].sqrt().div_(fix.root).add_(options_.eps);
      values_[i].addcdiv_(averages_[i], denominator, -fix.step_size);
    }
  }

  Options options_;
  Implementation implementation_;
  bool decoupled_;
  std::vector<Slot> slots_;
  std::vector<SlotState> states_;
  std::vector<at::Tensor> values_, grads_, averages_, squares_;  // Of the slots that have elements.
  at::Tensor step_;
};

Implementation parse_implementation(const std::string& name) {
  if (name == "fused") return Implementation::kFused;
  if (name == "foreach") return Implementation::kForeach;
  TORCH_CHECK(name == "for-loop", "optimizer.implementation: \"", name, "\" is none of fused, foreach, for-loop");
  return Implementation::kForLoop;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const Options& options, std::vector<Slot> slots) {
  TORCH_CHECK(options.name == "AdamW" || options.name == "Adam", "optimizer.name: \"", options.name,
              "\" is none of AdamW, Adam");
  return std::make_unique<Adam>(options, parse_implementation(options.implementation), std::move(slots));
}

}  // namespace titan::optim
