#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <optional>
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
      before_.push_back(values_.size());
      TORCH_CHECK(slot.value.sizes() == slot.grad.sizes() && slot.value.scalar_type() == slot.grad.scalar_type(),
                  slot.fqn, ": value and gradient differ in shape or type");
      states_.push_back({at::zeros_like(slot.value), at::zeros_like(slot.value)});
      if (slot.value.numel() == 0) continue;  // A rank that holds nothing of this parameter.
      values_.push_back(slot.value);
      grads_.push_back(slot.grad);
      averages_.push_back(states_.back().exp_avg);
      squares_.push_back(states_.back().exp_avg_sq);
    }
    before_.push_back(values_.size());
    if (!values_.empty()) step_ = step_.to(values_.front().device());
  }

  void step(double learning_rate, const Gate& gate) override {
    at::NoGradGuard no_grad;
    const Passage passage = open(gate);
    if (passage.closed) return;
    begin_step();
    if (passage.skip) step_.sub_(*passage.skip);
    update(0, slots_.size(), learning_rate, passage);
  }

  void begin_step() override {
    at::NoGradGuard no_grad;
    step_.add_(1);
  }

  void step_slots(size_t first, size_t count, double learning_rate) override {
    at::NoGradGuard no_grad;
    update(first, count, learning_rate, {});
  }

  std::vector<SlotState>& states() override { return states_; }
  at::Tensor& step_count() override { return step_; }

 private:
  // The tensors of some slots.
  struct Work {
    std::vector<at::Tensor> values, grads, averages, squares;
  };
  struct Correction {
    double step_size;
    double root;
  };
  // What is left of a gate for the fused kernels, as they want it.
  struct Passage {
    bool closed = false;  // Nothing is updated.
    std::optional<at::Tensor> divisor, skip;
  };

  // Fused kernels read the gate where it is. The others ask for it, as they ask for the step's number; so does float64,
  // of which a fused kernel would take the divisor in float32.
  Passage open(const Gate& gate) {
    if (!gate.skip.defined()) return {};
    const bool wide = !values_.empty() && values_.front().scalar_type() == at::kDouble;
    if (implementation_ == Implementation::kFused && !wide) {
      return {.divisor = gate.divisor.to(step_.device(), at::kFloat), .skip = gate.skip.to(step_.device())};
    }
    const at::Tensor known = at::stack({gate.divisor, gate.skip.to(at::kDouble)}).cpu();
    const double divisor = known.const_data_ptr<double>()[0];
    const bool closed = known.const_data_ptr<double>()[1] != 0;
    if (!closed && divisor > 1 && !grads_.empty()) at::_foreach_div_(grads_, divisor);
    return {.closed = closed};
  }

  void update(size_t first, size_t count, double learning_rate, const Passage& passage) {
    Work work;
    for (size_t i = before_[first]; i < before_[first + count]; ++i) {
      work.values.push_back(values_[i]);
      work.grads.push_back(grads_[i]);
      work.averages.push_back(averages_[i]);
      work.squares.push_back(squares_[i]);
    }
    if (work.values.empty()) return;
    switch (implementation_) {
      case Implementation::kFused:
        return step_fused(work, learning_rate, passage);
      case Implementation::kForeach:
        return step_foreach(work, learning_rate);
      case Implementation::kForLoop:
        return step_each(work, learning_rate);
    }
  }

  Correction correction(double learning_rate) const {
    const double step = step_.item<double>();
    return {learning_rate / (1 - std::pow(options_.beta1, step)), std::sqrt(1 - std::pow(options_.beta2, step))};
  }

  void step_fused(Work& work, double learning_rate, const Passage& passage) {
    const std::vector<at::Tensor> steps(work.values.size(), step_);
    const Options& o = options_;
    if (decoupled_) {
      at::_fused_adamw_(work.values, work.grads, work.averages, work.squares, {}, steps, learning_rate, o.beta1,
                        o.beta2, o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, passage.divisor,
                        passage.skip);
    } else {
      at::_fused_adam_(work.values, work.grads, work.averages, work.squares, {}, steps, learning_rate, o.beta1, o.beta2,
                       o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, passage.divisor, passage.skip);
    }
  }

  void step_foreach(Work& work, double learning_rate) {
    std::vector<at::Tensor> grads = work.grads;
    if (options_.weight_decay != 0) {
      if (decoupled_) {
        at::_foreach_mul_(work.values, 1 - learning_rate * options_.weight_decay);
      } else {
        grads = at::_foreach_add(work.grads, work.values, options_.weight_decay);
      }
    }
    at::_foreach_lerp_(work.averages, grads, 1 - options_.beta1);
    at::_foreach_mul_(work.squares, options_.beta2);
    at::_foreach_addcmul_(work.squares, grads, grads, 1 - options_.beta2);
    const Correction fix = correction(learning_rate);
    std::vector<at::Tensor> denominators = at::_foreach_sqrt(work.squares);
    at::_foreach_div_(denominators, fix.root);
    at::_foreach_add_(denominators, options_.eps);
    at::_foreach_addcdiv_(work.values, work.averages, denominators, -fix.step_size);
  }

  void step_each(Work& work, double learning_rate) {
    const Correction fix = correction(learning_rate);
    for (size_t i = 0; i < work.values.size(); ++i) {
      at::Tensor grad = work.grads[i];
      if (options_.weight_decay != 0) {
        if (decoupled_) {
          work.values[i].mul_(1 - learning_rate * options_.weight_decay);
        } else {
          grad = grad.add(work.values[i], options_.weight_decay);
        }
      }
      work.averages[i].lerp_(grad, 1 - options_.beta1);
      work.squares[i].mul_(options_.beta2).addcmul_(grad, grad, 1 - options_.beta2);
      const at::Tensor denominator = work.squares[i].sqrt().div_(fix.root).add_(options_.eps);
      work.values[i].addcdiv_(work.averages[i], denominator, -fix.step_size);
    }
  }

  Options options_;
  Implementation implementation_;
  bool decoupled_;
  std::vector<Slot> slots_;
  std::vector<SlotState> states_;
  std::vector<at::Tensor> values_, grads_, averages_, squares_;  // Of the slots that have elements.
  std::vector<size_t> before_;  // How many of those come before slot i; one more at the end.
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
